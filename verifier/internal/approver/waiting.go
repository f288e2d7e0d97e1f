package approver

import (
	"cmp"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/mcs-attest/mcs-attest/pkg/approver"
)

// waiting counts the requests that nobody has decided, by whose they are, so that
// a decision asks for a number and looks through no list. It is safe for
// concurrent use.
type waiting struct {
	byCredential func(id string) (uid string, ok bool)
	rules        approver.Config

	mu      sync.RWMutex
	known   map[string]waits
	counted map[string]period
	from    times // of counted, in nanoseconds
	until   times
	others  times // with no credential of a machine's record
	by      map[string]*line
}

// period is when a request counts against the limit of all, in Unix nanoseconds.
type period struct{ from, until int64 }

// waits is one request.
type waits struct {
	owner   string
	ours    bool
	client  bool
	created int64
}

func newWaiting(d Directory, rules approver.Config) *waiting {
	return &waiting{byCredential: d.ByCredential, rules: rules, known: map[string]waits{}, counted: map[string]period{}, by: map[string]*line{}}
}

func (w *waiting) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.from, w.until, w.others = nil, nil, nil
	clear(w.known)
	clear(w.counted)
	clear(w.by)
}

// Owners of requests: the machine whose credential made one, else a user. What is
// after the colon is the API server's word.
func ofMachine(uid string) string { return "machine:" + uid }
func ofUser(user string) string   { return "user:" + user }

// put takes a request's state.
func (w *waiting) put(csr *certificatesv1.CertificateSigningRequest) {
	w.count(csr)
	if decided(csr) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.forget(csr.Name)
		return
	}
	r := approver.FromCSR(csr)
	now := waits{owner: ofUser(r.Username), client: r.Kind == approver.Client, created: csr.CreationTimestamp.Unix()}
	if r.Kind == approver.Client && r.CredentialID != "" {
		if uid, ok := w.byCredential(r.CredentialID); ok {
			now.owner, now.ours = ofMachine(uid), true
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(csr.Name, now)
}

// count notes when a request counts against the limit of all.
func (w *waiting) count(csr *certificatesv1.CertificateSigningRequest) {
	from, until, ok := w.rules.Pending(csr)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.uncount(csr.Name)
	if ok {
		p := period{from.UnixNano(), until.UnixNano()}
		w.counted[csr.Name] = p
		w.from.add(p.from)
		w.until.add(p.until)
	}
}

func (w *waiting) uncount(name string) {
	if p, ok := w.counted[name]; ok {
		delete(w.counted, name)
		w.from.remove(p.from)
		w.until.remove(p.until)
	}
}

// at counts the requests whose period holds now; the lock is held.
func (w *waiting) at(now time.Time) int {
	at := now.UnixNano()
	return len(w.from) - w.from.since(at) - (len(w.until) - w.until.since(at+1))
}

func (w *waiting) set(name string, now waits) {
	w.forget(name)
	w.known[name] = now
	if !now.ours {
		w.others.add(now.created)
	}
	if w.by[now.owner] == nil {
		w.by[now.owner] = new(line)
	}
	w.by[now.owner].add(place{now.created, name})
}

func (w *waiting) drop(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.uncount(name)
	w.forget(name)
}

func (w *waiting) forget(name string) {
	was, ok := w.known[name]
	if !ok {
		return
	}
	delete(w.known, name)
	if !was.ours {
		w.others.remove(was.created)
	}
	w.by[was.owner].remove(place{was.created, name})
	if len(*w.by[was.owner]) == 0 {
		delete(w.by, was.owner)
	}
}

// load counts what waits now: in all, or with attestation what no credential
// of ours made; and how many of the request's own machine, or user, were made after
// it, and itself. So the newest of a machine are always decided, and it is these that
// a kubelet waits for: nobody waits for a person because of what is refused anyway,
// or what nobody has the key of any more. uid is of the machine whose credential made the request; the record that
// says so may have been read after the request was seen.
func (w *waiting) load(r *approver.Request, uid string, now time.Time) (pending, own int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if was, ok := w.known[r.Name]; ok && uid != "" && !was.ours {
		w.set(r.Name, waits{ofMachine(uid), true, true, was.created})
	}
	at, owner := now.Add(-approver.Window).Unix(), ofUser(r.Username)
	if uid != "" {
		owner = ofMachine(uid)
	}
	if l := w.by[owner]; l != nil {
		own = l.since(at, place{r.Created.Unix(), r.Name})
	}
	return w.all(now), own
}

// pending counts all that wait now.
func (w *waiting) pending(now time.Time) int {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.all(now)
}

// all is called with the lock held.
func (w *waiting) all(now time.Time) int {
	if w.rules.Attestation {
		return w.others.since(now.Add(-approver.Window).Unix())
	}
	return w.at(now)
}

// times are sorted.
type times []int64

func (t *times) add(at int64) {
	n, _ := slices.BinarySearch(*t, at+1) // after its like: the newest come last
	*t = slices.Insert(*t, n, at)
}

func (t *times) remove(at int64) {
	if n, ok := slices.BinarySearch(*t, at); ok {
		*t = slices.Delete(*t, n, n+1)
	}
}

func (t times) since(at int64) int {
	n, _ := slices.BinarySearch(t, at)
	return len(t) - n
}

// place is a request's in the line of its owner.
type place struct {
	created int64
	name    string
}

func (p place) compare(o place) int {
	return cmp.Or(cmp.Compare(p.created, o.created), cmp.Compare(p.name, o.name))
}

// line is sorted.
type line []place

func (l *line) add(p place) {
	if n, there := slices.BinarySearchFunc(*l, p, place.compare); !there {
		*l = slices.Insert(*l, n, p)
	}
}

func (l *line) remove(p place) {
	if n, there := slices.BinarySearchFunc(*l, p, place.compare); there {
		*l = slices.Delete(*l, n, n+1)
	}
}

// since counts from a place, but not from before a time.
func (l line) since(at int64, from place) int {
	first, _ := slices.BinarySearchFunc(l, place{created: at}, place.compare)
	mine, _ := slices.BinarySearchFunc(l, from, place.compare)
	return len(l) - max(first, mine)
}

// newer are the names of the machine's requests after r, the newest first, at most so
// many.
func (w *waiting) newer(r *approver.Request, uid string, most int) (names []string) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	own := w.by[ofMachine(uid)]
	if own == nil {
		return nil
	}
	at := place{r.Created.Unix(), r.Name}
	for _, p := range slices.Backward(*own) {
		if len(names) == most || p.compare(at) <= 0 {
			break
		}
		names = append(names, p.name)
	}
	return names
}

// clients are the names of those for client certificates.
func (w *waiting) clients() (names []string) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for name, r := range w.known {
		if r.client {
			names = append(names, name)
		}
	}
	return names
}

// whose is the machine, or for a serving certificate the node, that made a request;
// empty where that is not known.
func (w *waiting) whose(name string) string {
	w.mu.RLock()
	defer w.mu.RUnlock()
	if r := w.known[name]; r.ours || !r.client {
		return r.owner
	}
	return ""
}

func decided(csr *certificatesv1.CertificateSigningRequest) bool {
	return approval(csr) != nil || slices.ContainsFunc(csr.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
		return c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed
	})
}

// approval is the condition of an approved request; nil if it is not.
func approval(csr *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequestCondition {
	for n := range csr.Status.Conditions {
		if csr.Status.Conditions[n].Type == certificatesv1.CertificateApproved {
			return &csr.Status.Conditions[n]
		}
	}
	return nil
}
