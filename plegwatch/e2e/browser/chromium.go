// Package browser drives package plegz's page in Debian's Chromium, which has to be
// installed.
package browser

import (
	"context"
	"fmt"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
)

// Window is how the browser shows the page.
type Window struct {
	Width, Height int64
	Dark          bool
	Print         bool // as it is printed
}

// Open starts a Chromium that shows a page in a window, and returns a context for
// chromedp.Run. The browser ends when close is called.
func Open(ctx context.Context, w Window, url string) (tab context.Context, closeTab func(), err error) {
	// The sandbox needs rights that root in a container lacks; the page is our own.
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
