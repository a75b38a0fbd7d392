// Package browser opens package plegz's page in Debian's Chromium, which must be installed.
package browser

import (
	"context"
	"fmt"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// Window describes the browser window that shows the page.
type Window struct {
	Width, Height int64
	Dark          bool
	Print         bool // true for the print layout
}

// Open starts Chromium with a page in a window, and returns a context for chromedp.Run. closeTab
// ends the browser.
func Open(ctx context.Context, w Window, url string) (tab context.Context, closeTab func(), err error) {
	// Chromium's sandbox needs privileges that root in a container lacks. The page is our own, so
	// the sandbox can be off.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox,
		chromedp.WindowSize(int(w.Width), int(w.Height)))
	allocator, endAllocator := chromedp.NewExecAllocator(ctx, options...)
	tab, endTab := chromedp.NewContext(allocator)
	scheme := "light"
	if w.Dark {
		scheme = "dark"
	}
	media := ""
	if w.Print {
		media = "print"
	}
	colours := chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Media:    media,
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
	err = chromedp.Do(tab, chromedp.EmulateViewport(w.Width, w.Height), colours, chromedp.Navigate(url))
	closeTab = func() { endTab(); endAllocator() }
	if err != nil {
		closeTab()
		return nil, nil, fmt.Errorf("opening %s in Chromium: %w", url, err)
	}
	return tab, closeTab, nil
}
