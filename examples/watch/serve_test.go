package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kubepleg/pleg"
)

type fixedHealth pleg.HealthReport

func (h fixedHealth) HealthReport() pleg.HealthReport { return pleg.HealthReport(h) }

func TestHealthz(t *testing.T) {
	for _, tt := range []struct {
		report pleg.HealthReport
		code   int
	}{
		{pleg.HealthReport{Healthy: true, Pods: 3}, http.StatusOK},
		{pleg.HealthReport{Reason: "pleg has yet to be successful"}, http.StatusServiceUnavailable},
	} {
		w := httptest.NewRecorder()
		newHandler(http.NotFoundHandler(), prometheus.NewRegistry(), fixedHealth(tt.report)).ServeHTTP(w,
			httptest.NewRequest(http.MethodGet, "/healthz", nil))
		var got pleg.HealthReport
		if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
			t.Fatalf("%v in %s", err, w.Body)
		}
		if w.Code != tt.code || w.Header().Get("Content-Type") != "application/json" ||
			got.Healthy != tt.report.Healthy || got.Reason != tt.report.Reason || got.Pods != tt.report.Pods {
			t.Errorf("code %d, header %v, report %+v; want %d, %+v", w.Code, w.Header(), got, tt.code, tt.report)
		}
	}
}

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
