package api

import "net/http"

// nothing is an answer without a body.
type nothing struct{}

// created is the answer of a call that has created something.
type created struct{ body any }

// answers makes the handler of a route whose requests have no body. If do returns an error, its
// answer is ignored.
func answers[Answer any](do func(*server, *http.Request) (Answer, error)) handler {
	return func(s *server, w http.ResponseWriter, req *http.Request) error {
		answer, err := do(s, req)
		return s.reply(w, answer, err)
	}
}

// call makes the handler of a route whose requests have a JSON body.
func call[Body, Answer any](do func(*server, *http.Request, Body) (Answer, error)) handler {
	return decoded((*server).decode, do)
}

// callOptional is like call, but the body may be missing.
func callOptional[Body, Answer any](do func(*server, *http.Request, Body) (Answer, error)) handler {
	return decoded((*server).decodeOptional, do)
}

func decoded[Body, Answer any](decode func(*server, *http.Request, any) error,
	do func(*server, *http.Request, Body) (Answer, error)) handler {
	return func(s *server, w http.ResponseWriter, req *http.Request) error {
		var body Body
		if err := decode(s, req, &body); err != nil {
			return err
		}
		answer, err := do(s, req, body)
		return s.reply(w, answer, err)
	}
}

func (s *server) reply(w http.ResponseWriter, answer any, err error) error {
	if err != nil {
		return err
	}
	switch answer := answer.(type) {
	case nothing:
		w.WriteHeader(http.StatusNoContent)
	case created:
		s.answer(w, http.StatusCreated, answer.body)
	default:
		s.answer(w, http.StatusOK, answer)
	}
	return nil
}
