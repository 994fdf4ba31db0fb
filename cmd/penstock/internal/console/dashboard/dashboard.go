// Package dashboard serves web pages for operators on the admin address. They show which limits
// there are, which clients are denied, and why. The pages show the data of the admin API. Clients
// that may not read the API get no page. The pages are complete without JavaScript. With
// JavaScript, they are live.
package dashboard

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"html/template"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/penstock/penstock/cmd/penstock/internal/console/adminapi"
)

// Options of New. All fields must be set.
type Options struct {
	API     *adminapi.Handler
	Version string // of the program
}

// A Handler serves the pages. All of them are in one folder, and all links are relative, so a proxy
// may serve them under any prefix.
type Handler struct {
	Options
	mux http.ServeMux
}

// csp lets a page load only files of this origin. Only sync.js may parse a text as HTML: it uses
// the Trusted Types policy named penstock.
const csp = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"base-uri 'none'; form-action 'self'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types penstock"

func New(o Options) *Handler {
	h := &Handler{Options: o}
	for _, p := range pages {
		paths := []string{p.path}
		if p.path == overviewPath {
			paths = append(paths, "{$}")
		}
		for _, path := range paths {
			h.mux.HandleFunc("GET /"+path, func(w http.ResponseWriter, r *http.Request) { h.serve(w, r, p) })
		}
	}
	h.mux.HandleFunc("GET /dashboard/{$}", func(w http.ResponseWriter, _ *http.Request) { redirect(w, "../"+overviewPath) })
	h.mux.HandleFunc("GET /login", func(w http.ResponseWriter, r *http.Request) { h.login(w, r, http.StatusOK, "") })
	h.mux.HandleFunc("POST /login", h.receiveLogin)
	h.mux.HandleFunc("POST /logout", func(w http.ResponseWriter, r *http.Request) {
		http.SetCookie(w, adminapi.LogOut(r))
		redirect(w, overviewPath)
	})
	h.mux.HandleFunc("POST /reset", h.receiveReset)
	h.mux.HandleFunc("POST /rules", h.receiveReplay)
	h.mux.HandleFunc("GET /assets/{name}", serveAsset)
	h.mux.HandleFunc("GET /favicon.ico", func(w http.ResponseWriter, r *http.Request) {
		r.SetPathValue("name", "favicon.svg")
		serveAsset(w, r)
	})
	return h
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Security-Policy", csp)
	if err := h.API.CheckOrigin(r); err != nil {
		h.fail(w, r, adminapi.StatusOf(err), err)
		return
	}
	h.mux.ServeHTTP(w, r)
}

// serve sends a page, or the form to log in.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, p page) {
	v, err := h.API.ViewerOf(r)
	switch {
	case err != nil && adminapi.StatusOf(err) == http.StatusUnauthorized && r.Header.Get("Authorization") == "":
		h.login(w, r, http.StatusUnauthorized, "")
		return
	case err != nil:
		h.fail(w, r, adminapi.StatusOf(err), err)
		return
	}
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		h.fail(w, r, http.StatusBadRequest, errors.New("the query cannot be read; escape its values"))
		return
	}
	body, err := p.make(h, r.Context(), v, values)
	if err != nil && adminapi.StatusOf(err) == http.StatusUnauthorized {
		h.login(w, r, http.StatusUnauthorized, "Only operators may see this.")
		return
	}
	if err != nil && body == nil {
		h.fail(w, r, adminapi.StatusOf(err), err)
		return
	}
	status := http.StatusOK
	if err != nil { // the page has the form, and shows what is wrong
		status = adminapi.StatusOf(err)
	}
	h.write(w, status, p.template, view{Page: p, Viewer: v, Body: body, Problem: text(err)}, r)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

type view struct {
	Page     page
	Pages    []page
	Viewer   adminapi.Viewer
	HasToken bool // the service has an operator token
	Version  string
	State    *adminapi.State // nil if the viewer may not read
	Next     string          // the page after a login
	Problem  string
	Body     any
}

func (h *Handler) write(w http.ResponseWriter, status int, name string, v view, r *http.Request) {
	v.Pages, v.Version, v.HasToken = pages, h.Version, len(h.API.Token) > 0
	if v.Page.path != "" {
		v.State = h.API.ReadState(r.Context())
		v.Next = v.Page.path
	}
	var body bytes.Buffer
	if err := templates[name].ExecuteTemplate(&body, "layout", v); err != nil {
		http.Error(w, "the page cannot be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes())
}

func (h *Handler) fail(w http.ResponseWriter, r *http.Request, status int, err error) {
	h.write(w, status, "problem", view{Page: page{Title: http.StatusText(status)}, Problem: err.Error()}, r)
}

// login sends the form to log in. After the login, the browser returns to the requested page.
func (h *Handler) login(w http.ResponseWriter, r *http.Request, status int, problem string) {
	next := r.FormValue("next")
	if next == "" && r.URL.Path != "/login" {
		next = strings.TrimPrefix(r.URL.Path, "/")
		if r.URL.RawQuery != "" {
			next += "?" + r.URL.RawQuery
		}
	}
	h.write(w, status, "login", view{Page: page{Title: "Log in"}, Next: pageOrOverview(next), Problem: problem}, r)
}

func (h *Handler) receiveLogin(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	cookie, err := h.API.LogIn(r.PostFormValue("token"), r)
	if err != nil {
		h.login(w, r, http.StatusUnauthorized, "This is not the operator token.")
		return
	}
	http.SetCookie(w, cookie)
	redirect(w, pageOrOverview(r.PostFormValue("next")))
}

const maxForm = 16 << 10 // bytes

// pageOrOverview returns next if it is a page, with or without a query. Otherwise it returns the
// overview, so that no link leads to another site after a login.
func pageOrOverview(next string) string {
	name, _, _ := strings.Cut(next, "?")
	if slices.ContainsFunc(pages, func(p page) bool { return p.path == name }) {
		return next
	}
	return overviewPath
}

// redirect sends the browser to a page in the same folder. http.Redirect would make the path
// absolute, so the prefix of a proxy would be lost.
func redirect(w http.ResponseWriter, to string) {
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

//go:embed assets pages
var files embed.FS

type asset struct {
	text []byte
	tag  string
}

var assets = func() map[string]asset {
	all := make(map[string]asset)
	list, _ := fs.ReadDir(files, "assets")
	for _, f := range list {
		text, _ := files.ReadFile("assets/" + f.Name())
		sum := sha256.Sum256(text)
		all[f.Name()] = asset{text, `"` + hex.EncodeToString(sum[:8]) + `"`}
	}
	return all
}()

// UPlot returns the script and the style sheet of the library that draws charts.
func UPlot() (script, style string) {
	return string(assets["uPlot.iife.min.js"].text), string(assets["uPlot.min.css"].text)
}

// mediaTypes are the media types of assets by their extension. Package mime would use the
// machine's, which may differ.
var mediaTypes = map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}

// serveAsset serves a script, a style sheet or an image. It needs no token: assets have no secrets.
func serveAsset(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	a, ok := assets[name]
	if !ok {
		http.NotFound(w, r)
		return
	}
	header := w.Header()
	header.Set("Content-Type", cmp.Or(mediaTypes[path.Ext(name)], "text/plain; charset=utf-8"))
	header.Set("ETag", a.tag)
	header.Set("Cache-Control", "no-cache") // caches must revalidate by the ETag
	if strings.Contains(r.Header.Get("If-None-Match"), a.tag) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(a.text)
}

var templates = func() map[string]*template.Template {
	all := make(map[string]*template.Template)
	layout := template.Must(template.New("").Funcs(functions).ParseFS(files, "pages/layout.html", "pages/parts.html"))
	for _, name := range []string{"overview", "rules", "timeline", "offenders", "key", "explain", "health", "login", "problem"} {
		all[name] = template.Must(template.Must(layout.Clone()).ParseFS(files, "pages/"+name+".html"))
	}
	return all
}()
