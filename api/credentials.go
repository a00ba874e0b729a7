package api

import (
	"net/http"

	"github.com/rs/zerolog"

	"github.com/daycare-run/sandbox/api/types"
	"github.com/daycare-run/sandbox/internal/credential"
	"github.com/daycare-run/sandbox/internal/errs"
	"github.com/daycare-run/sandbox/internal/events"
)

// Credentials are the registered credentials. *credential.Store is one.
type Credentials interface {
	Put(c credential.Credential, value string) (stored credential.Credential, made bool, err error)
	Get(name string) (credential.Credential, error)
	List() []credential.Credential
	Remove(name string) error
}

func (s *server) putCredential(req *http.Request, body types.PutCredential) (any, error) {
	value := ""
	if body.Value != nil {
		if value = *body.Value; value == "" {
			return nil, errs.Invalid("value is empty: leave it out to keep the one there is")
		}
	}
	stored, isNew, err := s.cfg.Credentials.Put(credential.Credential{
		Name: req.PathValue("name"), Hosts: body.Hosts,
		Place: credential.Place(body.CredentialPlace), Methods: body.Methods, Paths: body.Paths,
		Users: body.Users, Env: body.Env,
	}, value)
	if err != nil {
		return nil, err
	}
	if isNew {
		s.tellCredential(req, stored.Name, "credential registered")
		return created{describeCredential(stored)}, nil
	}
	s.tellCredential(req, stored.Name, "credential changed")
	return describeCredential(stored), nil
}

func (s *server) credentials(*http.Request) (types.CredentialList, error) {
	list := types.CredentialList{Credentials: []types.Credential{}}
	for _, c := range s.cfg.Credentials.List() {
		list.Credentials = append(list.Credentials, describeCredential(c))
	}
	return list, nil
}

func (s *server) credential(req *http.Request) (types.Credential, error) {
	c, err := s.cfg.Credentials.Get(req.PathValue("name"))
	return describeCredential(c), err
}

func (s *server) removeCredential(req *http.Request) (nothing, error) {
	name := req.PathValue("name")
	if err := s.cfg.Credentials.Remove(name); err != nil {
		return nothing{}, err
	}
	s.tellCredential(req, name, "credential removed")
	return nothing{}, nil
}

// describeCredential converts a credential to JSON's form.
func describeCredential(c credential.Credential) types.Credential {
	return types.Credential{
		Name: c.Name,
		CredentialTerms: types.CredentialTerms{
			Hosts: c.Hosts, CredentialPlace: types.CredentialPlace(c.Place), Methods: c.Methods,
			Paths: c.Paths, Users: c.Users, Env: c.Env,
		},
		Placeholder: c.Placeholder, CreatedAt: c.CreatedAt, UpdatedAt: c.UpdatedAt,
	}
}

// credentialChange is the event of a credential that was registered, changed or removed. Operators
// alone are told.
type credentialChange struct{ name, caller, what string }

func (s *server) tellCredential(req *http.Request, name, what string) {
	stream, _ := s.service.Events()
	stream.Tell(req.Context(), "", credentialChange{name, s.caller.Name, what})
}

// Line implements events.Line.
func (c credentialChange) Line(log *zerolog.Logger, _ string) {
	events.Texts(log.Info(), "credential", c.name, "caller", c.caller).Msg(c.what)
}
