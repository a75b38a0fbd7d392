// The page begins.

readAddress();
drawFilter();
setLink('connecting');
if (!document.hidden) connect(); // a tab in the background costs the node nothing
