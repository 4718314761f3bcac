package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/herdgate/herdgate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestTheServiceAnswersAndEndsCleanly(t *testing.T) {
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, []string{"-addr", "127.0.0.1:0"}, in)
		_ = in.CloseWithError(err)
		ended <- err
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	url := strings.TrimSpace(strings.TrimPrefix(line, "serving "))
	client := &http.Client{Transport: &http.Transport{}}
	for range 2 { // loaded, then from the cache
		if status, body := get(t, client, url); status != http.StatusOK || !strings.Contains(body, "Kettle") {
			t.Errorf("got %d %s", status, body)
		}
	}
	if status, body := send(t, client, http.MethodPut, url+"/name", "Samovar"); status != http.StatusNoContent {
		t.Errorf("renaming gives %d %s", status, body)
	}
	if _, body := get(t, client, url); !strings.Contains(body, "Samovar") {
		t.Errorf("after it was renamed: %s", body)
	}
	if _, body := get(t, client, strings.TrimSuffix(url, "products/1")+"stats"); !strings.Contains(body, `"Loads":2`) {
		t.Errorf("stats: %s", body)
	}
	if status, body := get(t, client, strings.TrimSuffix(url, "1")+"99"); status != http.StatusNotFound {
		t.Errorf("a product that does not exist gives %d %s", status, body)
	}
	client.CloseIdleConnections()
	interrupt()
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func get(t *testing.T, client *http.Client, url string) (status int, body string) {
	t.Helper()
	return send(t, client, http.MethodGet, url, "")
}

func send(t *testing.T, client *http.Client, method, url, what string) (status int, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(what))
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	b, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(b)
}

func TestADatabaseThatDoesNotAnswerIsServiceUnavailable(t *testing.T) {
	db, err := openDatabase(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	gate, err := herdgate.Open(t.Context(), herdgate.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = gate.Close(t.Context()) }()
	s, err := newService(gate, db)
	if err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/products/1", http.NoBody)
	request.SetPathValue("id", "1")
	response := httptest.NewRecorder()
	s.get(response, request)
	if response.Code != http.StatusServiceUnavailable {
		t.Errorf("got %d", response.Code)
	}
}

func TestAnAddressInUseIsNamed(t *testing.T) {
	taken := httptest.NewServer(http.NotFoundHandler())
	defer taken.Close()
	addr := taken.Listener.Addr().String()
	err := run(t.Context(), []string{"-addr", addr}, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "-addr "+addr) {
		t.Errorf("told: %v", err)
	}
}
