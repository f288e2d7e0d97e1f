package pointer

import "errors"

// Scrub removes every Authorization header from ignition.config of the config
// that Ignition caches (/run/ignition.json), and every parameter "token" from the
// URL of a Machine Config Server, and says how many there were. That
// file has Ignition's newest internal version, so it is not checked against a
// specification; nothing else in it changes.
func Scrub(raw []byte) ([]byte, int, error) {
	doc, ok := document(raw)
	if !ok {
		return nil, 0, errors.New("the config that Ignition cached is not JSON")
	}
	config, ok, err := doc.find("ignition", "config")
	if err != nil || !ok {
		return raw, 0, err
	}
	var entries []value
	if replace, ok, err := config.find("replace"); err != nil {
		return nil, 0, err
	} else if ok {
		entries = append(entries, replace)
	}
	if merge, ok, err := config.find("merge"); err != nil {
		return nil, 0, err
	} else if ok {
		entries = append(entries, merge.elements()...)
	}
	var edits []edit
	count := 0
	for _, e := range entries {
		source, ok, err := e.find("source")
		if err != nil {
			return nil, 0, err
		}
		if text, isText := source.strOrEmpty(); ok && isText {
			if _, server := asSource("", text); server && len(parameters(text)) > 0 {
				edits = append(edits, edit{source.start, source.end, []byte(quote(setParameter(text, nil)))})
				count++
			}
		}
		headers, ok, err := e.find("httpHeaders")
		if err != nil {
			return nil, 0, err
		}
		if !ok {
			continue
		}
		kept := []byte{'['}
		removed := 0
		for _, h := range headers.elements() {
			is, err := isAuthorization(h)
			if err != nil {
				return nil, 0, err
			}
			if is {
				removed++
				continue
			}
			if len(kept) > 1 {
				kept = append(kept, ',')
			}
			kept = append(kept, h.raw()...)
		}
		if removed > 0 {
			edits = append(edits, edit{headers.start, headers.end, append(kept, ']')})
			count += removed
		}
	}
	return apply(raw, edits), count, nil
}
