// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apifields "k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"github.com/mcs-attest/mcs-attest/verifier/internal/kube"
)

// apiServer is the API server: the protocol over a store. It has no failures and no delays; a client has them.
type apiServer struct {
	*store
	decoder runtime.Decoder

	mu    sync.Mutex
	pages map[string]page
}

// page is the rest of a list.
type page struct {
	objects  []*object
	revision uint64
}

func newServer() (*apiServer, error) {
	scheme, err := kube.Scheme()
	if err != nil {
		return nil, err
	}
	return &apiServer{store: newStore(), decoder: serializer.NewCodecFactory(scheme).UniversalDeserializer(),
		pages: map[string]page{}}, nil
}

// request is a parsed request for a resource.
type request struct {
	write
	verb    string // of RBAC
	query   url.Values
	partial bool // only the metadata
	patch   string
	body    []byte
}

// parse returns nil for a path that names no resource of the cluster.
func parse(by string, r *http.Request) (*request, error) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	var group string
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = parts[1:]
	case parts[0] == "apis" && len(parts) > 3:
		group, parts = parts[1], parts[2:]
	default:
		return nil, nil
	}
	q := &request{write: write{by: by}, query: r.URL.Query(), patch: r.Header.Get("Content-Type")}
	version, parts := parts[0], parts[1:]
	if parts[0] == "namespaces" && len(parts) > 2 && parts[2] != "status" {
		q.namespace, parts = parts[1], parts[2:]
	}
	if q.kind = kindOf(group, version, parts[0]); q.kind == nil {
		return nil, nil
	}
	if parts = parts[1:]; len(parts) > 0 {
		q.name = parts[0]
	}
	if len(parts) > 1 {
		q.sub = parts[1]
	}
	q.partial = strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadata")
	q.verb = map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPut: "update",
		http.MethodPatch: "patch", http.MethodDelete: "delete"}[r.Method]
	switch {
	case q.verb == "get" && q.query.Get("watch") != "" && q.query.Get("watch") != "false":
		q.verb = "watch"
	case q.verb == "get" && q.name == "":
		q.verb = "list"
	}
	if r.Body != nil {
		var err error
		if q.body, err = io.ReadAll(r.Body); err != nil {
			return nil, err
		}
	}
	return q, nil
}

// perform performs a request other than a watch.
func (s *apiServer) perform(q *request) (status int, body []byte) {
	o, err := s.answer(q)
	if err != nil {
		return failure(err)
	}
	if q.verb == "create" {
		status = http.StatusCreated
	} else {
		status = http.StatusOK
	}
	return status, o
}

func (s *apiServer) answer(q *request) ([]byte, error) {
	var o *object
	var err error
	switch q.verb {
	case "get":
		if o = s.get(q.kind, q.namespace, q.name); o == nil {
			err = apierrors.NewNotFound(q.kind.gr(), q.name)
		}
	case "list":
		return s.page(q)
	case "create":
		var content fields
		if content, err = s.decode(q.body); err == nil {
			if q.kind.resource == "certificatesigningrequests" {
				spec := section(content, "spec")
				spec["username"], spec["groups"] = controllerAccount, []string{"system:authenticated"}
			}
			o, err = s.create(q.write, content)
		}
	case "update":
		var content fields
		if content, err = s.decode(q.body); err == nil {
			o, err = s.change(q.write, func(fields) (fields, error) { return content, nil })
		}
	case "patch":
		o, err = s.merge(q)
	case "delete":
		var options metav1.DeleteOptions
		if options, err = s.deleteOptions(q.body); err == nil {
			o, err = s.delete(q.write, options)
		}
	default:
		err = apierrors.NewMethodNotSupported(q.kind.gr(), q.verb)
	}
	if err != nil {
		return nil, err
	}
	return rendered(o, q.partial), nil
}

// merge performs a merge patch. Of the strategic merge patches, those of Events are the same.
func (s *apiServer) merge(q *request) (*object, error) {
	if !strings.Contains(q.patch, "merge-patch") {
		return nil, fmt.Errorf("the model has no %s", q.patch)
	}
	var patch fields
	if err := json.Unmarshal(q.body, &patch); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return s.change(q.write, func(current fields) (fields, error) {
		return merged(current, patch).(fields), nil
	})
}

// merged is MergePatch of RFC 7396.
func merged(target, patch any) any {
	p, ok := patch.(fields)
	if !ok {
		return patch
	}
	t, _ := target.(fields)
	if t == nil {
		t = fields{}
	}
	for name, value := range p {
		if value == nil {
			delete(t, name)
		} else {
			t[name] = merged(t[name], value)
		}
	}
	return t
}

// decode decodes the body of a request, in JSON or, of a built-in kind, in protobuf.
func (s *apiServer) decode(body []byte) (fields, error) {
	if !bytes.HasPrefix(bytes.TrimSpace(body), []byte("{")) {
		o, _, err := s.decoder.Decode(body, nil, nil)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if body, err = json.Marshal(o); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	var content fields
	if err := json.Unmarshal(body, &content); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return content, nil
}

func (s *apiServer) deleteOptions(body []byte) (o metav1.DeleteOptions, err error) {
	if len(body) == 0 {
		return o, nil
	}
	content, err := s.decode(body)
	if err != nil {
		return o, err
	}
	raw, err := json.Marshal(content)
	if err != nil {
		return o, err
	}
	err = json.Unmarshal(raw, &o)
	return o, err
}

// selectors returns what a list or a watch selects, or "".
func (q *request) selectors() string {
	var all string
	for _, name := range []string{"labelSelector", "fieldSelector", "limit"} {
		if s := q.query.Get(name); s != "" {
			all += " " + s
		}
	}
	return all
}

// matcher returns whether an object is among those that a list or a watch asks for.
func (q *request) matcher() (func(*object) bool, error) {
	byLabel, err := labels.Parse(q.query.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	byField, err := apifields.ParseSelector(q.query.Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return func(o *object) bool {
		if o.kind != q.kind || q.namespace != "" && o.namespace != q.namespace {
			return false
		}
		have := labels.Set{}
		for name, value := range section(o.meta(), "labels") {
			have[name], _ = value.(string)
		}
		return byLabel.Matches(have) && byField.Matches(apifields.Set{
			"metadata.name": o.name, "metadata.namespace": o.namespace,
			"spec.signerName": text(section(o.content, "spec"), "signerName"), "type": text(o.content, "type"),
		})
	}, nil
}

// page returns a page of a list. All pages of a list are of one revision.
func (s *apiServer) page(q *request) ([]byte, error) {
	limit, _ := strconv.Atoi(q.query.Get("limit"))
	var at page
	if token := q.query.Get("continue"); token != "" {
		s.mu.Lock()
		rest, ok := s.pages[token]
		delete(s.pages, token)
		s.mu.Unlock()
		if !ok {
			return nil, apierrors.NewResourceExpired("the continue token is too old")
		}
		at = rest
	} else {
		matches, err := q.matcher()
		if err != nil {
			return nil, err
		}
		at.objects, at.revision = s.list(matches)
	}
	meta := fields{"resourceVersion": strconv.FormatUint(at.revision, 10)}
	now := at.objects
	if limit > 0 && len(now) > limit {
		now = now[:limit]
		s.mu.Lock()
		token := fmt.Sprintf("%d-%s-%d", at.revision, now[limit-1].key(), len(at.objects))
		s.pages[token] = page{at.objects[limit:], at.revision}
		s.mu.Unlock()
		meta["continue"] = token
	}
	items := make([]json.RawMessage, 0, len(now))
	for _, o := range now {
		items = append(items, rendered(o, q.partial))
	}
	head := fields{"apiVersion": q.kind.apiVersion(), "kind": q.kind.kind + "List", "metadata": meta, "items": items}
	if q.partial {
		head["apiVersion"], head["kind"] = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	return json.Marshal(head)
}

// rendered returns an object, or only its metadata.
func rendered(o *object, partial bool) []byte {
	if !partial {
		return o.raw
	}
	raw, err := json.Marshal(fields{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
		"metadata": o.meta()})
	if err != nil {
		panic(err)
	}
	return raw
}

// failure returns the Status of an error.
func failure(err error) (int, []byte) {
	var s apierrors.APIStatus
	if !errors.As(err, &s) {
		s = apierrors.NewInternalError(err)
	}
	out := s.Status()
	out.Kind, out.APIVersion = "Status", "v1"
	raw, err := json.Marshal(out)
	if err != nil {
		panic(err)
	}
	return int(out.Code), raw
}

// discover answers the paths from which a client learns the resources. It returns nil for other paths.
func discover(path string) any {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case path == "/api":
		return metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
	case path == "/apis":
		all := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, k := range kinds {
			v := metav1.GroupVersionForDiscovery{GroupVersion: k.apiVersion(), Version: k.version}
			if k.group != "" && !slices.ContainsFunc(all.Groups, func(g metav1.APIGroup) bool { return g.Name == k.group }) {
				all.Groups = append(all.Groups, metav1.APIGroup{Name: k.group, PreferredVersion: v,
					Versions: []metav1.GroupVersionForDiscovery{v}})
			}
		}
		return all
	case parts[0] == "api" && len(parts) == 2, parts[0] == "apis" && len(parts) == 3:
		gv := strings.Join(parts[1:], "/")
		all := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv}
		for _, k := range kinds {
			if k.apiVersion() == gv {
				all.APIResources = append(all.APIResources, metav1.APIResource{Name: k.resource, Kind: k.kind,
					Namespaced: k.namespaced, Verbs: metav1.Verbs{"get", "list", "watch", "create", "update", "patch", "delete"}})
			}
		}
		if len(all.APIResources) > 0 {
			return all
		}
	}
	return nil
}
