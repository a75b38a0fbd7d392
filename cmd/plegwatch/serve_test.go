package main

import "testing"

func TestListenAddress(t *testing.T) {
	for address, want := range map[string]string{
		"9100": "127.0.0.1:9100", ":9100": "127.0.0.1:9100",
		"0.0.0.0:9100": "0.0.0.0:9100", "[::1]:9100": "[::1]:9100", "localhost:http": "localhost:http",
	} {
		if got := listenAddress(address); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}
