// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/fetch"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/chromedp"
	authentication "k8s.io/api/authentication/v1"
	authorization "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/mcs-attest/mcs-attest/verifier/internal/admin"
	"github.com/mcs-attest/mcs-attest/verifier/internal/metrics"
)

// readerToken is the one that the API server of these tests accepts.
const readerToken = "sha256~reader"

// browser starts headless Chromium, and returns a function that opens a tab.
func browser(t *testing.T) func(*testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium-headless-shell")
	if err != nil {
		t.Fatal("not installed: chromium-headless-shell\nhint: make deps")
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.IgnoreCertErrors, chromedp.WSURLReadTimeout(10*time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, stop := chromedp.NewContext(ctx)
	t.Cleanup(stop)
	if err := chromedp.Do(ctx); err != nil {
		t.Fatal("start Chromium: ", err)
	}
	return func(t *testing.T) context.Context {
		tab, cancel := chromedp.NewContext(ctx)
		t.Cleanup(cancel)
		tab, cancel = context.WithTimeout(tab, 10*time.Minute)
		t.Cleanup(cancel)
		err := chromedp.Listen(tab, func(e any) {
			switch e := e.(type) {
			case *cdplog.EventEntryAdded: // a violation of the page's policy is one
				if e.Entry.Text != "" && !strings.HasSuffix(e.Entry.URL, "/favicon.ico") {
					t.Errorf("the browser reports: %s %s", e.Entry.Text, e.Entry.URL)
				}
			case *fetch.EventAuthRequired: // the person in front of the browser pastes a token
				go func() {
					_, _ = chromedp.Call(tab, fetch.ContinueWithAuth, fetch.ContinueWithAuthParams{
						RequestID: e.RequestID, AuthChallengeResponse: &fetch.AuthChallengeResponse{
							Response: fetch.AuthChallengeResponseResponseProvideCredentials, Username: "any", Password: readerToken},
					})
				}()
			case *fetch.EventRequestPaused:
				go func() {
					_, _ = chromedp.Call(tab, fetch.ContinueRequest, fetch.ContinueRequestParams{RequestID: e.RequestID})
				}()
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		send(t, tab, fetch.Enable, fetch.EnableParams{HandleAuthRequests: new(true)})
		return tab
	}
}

// send sends a command of the protocol to a tab.
func send[P, R any](t *testing.T, tab context.Context, command cdp.Command[P, R], params P) {
	t.Helper()
	if _, err := chromedp.Call(tab, command, params); err != nil {
		t.Fatal(command.Method, ": ", err)
	}
}

// open opens the page in a tab of some size.
func open(t *testing.T, tab context.Context, url string, width, height int64) {
	t.Helper()
	if err := chromedp.Do(tab, chromedp.EmulateViewport(width, height), chromedp.Navigate(url)); err != nil {
		t.Fatal(err)
	}
}

// eval returns the value of an expression in a tab.
func eval[V any](t *testing.T, tab context.Context, expression string) V {
	t.Helper()
	value, err := chromedp.Run(tab, chromedp.Evaluate[V](expression))
	if err != nil {
		t.Fatal(err)
	}
	return value
}

// until waits until an expression is true in a tab.
func until(t *testing.T, tab context.Context, expression string) {
	t.Helper()
	for !eval[bool](t, tab, expression) {
		time.Sleep(50 * time.Millisecond)
	}
}

// screenshot keeps the page as a tab has it, in artifacts.
func screenshot(t *testing.T, tab context.Context, name string) {
	t.Helper()
	png, err := chromedp.Run(tab, chromedp.FullScreenshot(100))
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join("..", "..", "..", "artifacts", "web-page")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		t.Fatal(err)
	}
}

// servedPage serves the page over TLS to those whose token an API server accepts, and returns its URL.
func servedPage(t *testing.T) (*process, *metrics.Metrics, string) {
	t.Helper()
	api := fake.NewClientset()
	api.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authentication.TokenReview).DeepCopy()
		r.Status.Authenticated = r.Spec.Token == readerToken
		return true, r, nil
	})
	api.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authorization.SubjectAccessReview).DeepCopy()
		r.Status.Allowed = r.Spec.NonResourceAttributes.Path == Path && r.Spec.NonResourceAttributes.Verb == "get"
		return true, r, nil
	})
	reviews := &metrics.Reviews{Client: api, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	p, m, page := newPage(t, time.Now)
	srv := httptest.NewTLSServer(reviews.ProtectPage(Path, page))
	t.Cleanup(srv.Close)
	t.Cleanup(srv.CloseClientConnections) // streams
	return p, m, srv.URL + Path
}

func TestBrowser(t *testing.T) {
	tab := browser(t)
	p, m, url := servedPage(t)
	set := func(state admin.State, doors string) {
		p.set(func(s *admin.State) { *s = state })
		reportDoors(m, doors)
	}

	t.Run("complete without script", func(t *testing.T) {
		set(scaleUp(time.Now()), "closed")
		tab := tab(t)
		send(t, tab, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
		open(t, tab, url, 1100, 800)
		text, err := chromedp.Run(tab, chromedp.Text(chromedp.CSS("body")))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"Reload the page", "worker-3", "enroll --approve 3f2a9c01d4e5b6a7", "master-1"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q cannot be seen", want)
			}
		}
		if strings.Contains(text, "Copy") {
			t.Error("a button that does nothing")
		}
	})

	t.Run("changes as machines boot", func(t *testing.T) {
		set(admin.State{}, "closed")
		tab := tab(t)
		open(t, tab, url, 1100, 800)
		until(t, tab, `document.getElementById("live").textContent === "Live." &&
			!document.body.innerText.includes("worker-")`)
		screenshot(t, tab, "quiet")
		now := time.Now()
		set(scaleUp(now), "closed")
		until(t, tab, `document.querySelector("#boots").innerText.includes("worker-4")`)
		screenshot(t, tab, "scale-up")
		eval[any](t, tab, `document.querySelector(".copy").focus(), document.querySelector(".copy").mark = true`)
		next := scaleUp(now)
		next.Machines[3].Record.Phase = "Fetched"
		next.Pending = append(next.Pending, next.Pending[0])
		next.Pending[1].ID = "00000000000000aa"
		set(next, "closed")
		until(t, tab, `document.querySelector("#waiting").innerText.includes("00000000000000aa") &&
			document.querySelectorAll(".is-Fetched").length === 2`)
		if !eval[bool](t, tab, `document.activeElement.mark === true`) {
			t.Error("a change elsewhere took the focus from a button")
		}
		send(t, tab, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}})
		until(t, tab, `getComputedStyle(document.body).backgroundColor === "rgb(15, 19, 24)"`)
		screenshot(t, tab, "scale-up-dark")
	})

	t.Run("hostile text stays text", func(t *testing.T) {
		set(hostile(time.Now()), "open")
		tab := tab(t)
		open(t, tab, url, 1100, 800)
		until(t, tab, `document.getElementById("live").textContent === "Live."`)
		p.set(func(s *admin.State) { s.Problems = append(s.Problems, "<img src=x onerror=window.pwned=1> later") })
		until(t, tab, `document.getElementById("problems").innerText.includes("onerror=window.pwned=1> later") &&
			document.getElementById("boots").innerText.includes("<img src=x onerror=window.pwned=1>")`)
		screenshot(t, tab, "trouble")
		if eval[bool](t, tab, `"pwned" in window || document.images.length > 0 || document.scripts.length !== 1`) {
			t.Error("hostile text became an element")
		}
	})

	t.Run("fits a narrow screen", func(t *testing.T) {
		set(scaleUp(time.Now()), "closed")
		tab := tab(t)
		open(t, tab, url, 320, 640)
		until(t, tab, `document.querySelector("#boots").innerText.includes("worker-3")`)
		if w := eval[int](t, tab, `document.documentElement.scrollWidth`); w > 320 {
			t.Errorf("the page is %d pixels wide", w)
		}
		screenshot(t, tab, "narrow")
	})

	t.Run("speaks to a screen reader", func(t *testing.T) {
		tab := tab(t)
		open(t, tab, url, 1100, 800)
		until(t, tab, `document.querySelectorAll(".copy, table").length >= 5`)
		bad := eval[[]string](t, tab, `[
			...[...document.querySelectorAll("th:not([scope])")].map((e) => "a header cell without scope: " + e.textContent),
			...[...document.querySelectorAll("section")].filter((e) => !e.matches("[aria-label]") &&
				!document.getElementById(e.getAttribute("aria-labelledby"))).map((e) => "a section without a name: " + e.id),
			...["header", "nav", "main", "footer", "h1", "[aria-live=polite]", "[role=status]", "a.skip[href='#boots']"]
				.filter((s) => !document.querySelector(s)).map((s) => "no " + s),
			...[...document.querySelectorAll(".scroll")].filter((e) => e.tabIndex !== 0).map((e) => "no key scrolls a table"),
			...[...document.querySelectorAll("[id]")].map((e) => e.id).filter((id, i, all) => all.indexOf(id) !== i)
				.map((id) => "two elements have the id " + id)]`)
		if len(bad) > 0 {
			t.Error(strings.Join(bad, "\n"))
		}
	})
}
