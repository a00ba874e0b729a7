package types

import "time"

// CredentialTerms say what a credential is for, and how the service puts its value into requests.
type CredentialTerms struct {
	// Hosts are the names whose HTTPS requests get the value: api.example.com, or *.example.com for
	// every name below it.
	Hosts []string `json:"hosts"`
	CredentialPlace
	// Methods, Paths and Users are nil for all. A path is a prefix.
	Methods []string `json:"methods,omitempty"`
	Paths   []string `json:"paths,omitempty"`
	Users   []string `json:"users,omitempty"`
	// Env is the variable that has the placeholder inside; empty for none.
	Env string `json:"env,omitempty"`
}

// CredentialPlace is where a request has the value: exactly one of Header, Basic and Query.
type CredentialPlace struct {
	// Header is set to Template, in which {secret} stands for the value.
	Header   string `json:"header,omitempty"`
	Template string `json:"template,omitempty"`
	// Basic is the user name of Basic authentication, whose password is the value.
	Basic string `json:"basic,omitempty"`
	// Query is the query parameter that gets the value.
	Query string `json:"query,omitempty"`
}

// Credential is a registered credential. Its value is in no answer.
type Credential struct {
	Name string `json:"name"`
	CredentialTerms
	// Placeholder is what commands have in place of the value.
	Placeholder string    `json:"placeholder"`
	CreatedAt   time.Time `json:"createdAt"`
	UpdatedAt   time.Time `json:"updatedAt"`
}

// PutCredential is the body of PUT /v1/credentials/{name}.
type PutCredential struct {
	CredentialTerms
	// Value is absent to keep the value that there is.
	Value *string `json:"value,omitempty"`
}

// CredentialList is the answer of GET /v1/credentials.
type CredentialList struct {
	Credentials []Credential `json:"credentials"`
}
