package pleg

import (
	"encoding/json"
	"fmt"
	"strings"
)

// BuildContainerID returns the ID of a container of a runtime, such as "containerd".
func BuildContainerID(typ, id string) ContainerID { return ContainerID{Type: typ, ID: id} }

// ParseContainerID parses the form that Kubernetes shows, "containerd://3f2a…": the
// inverse of ContainerID.String. Unlike the kubelet's function it returns an error, which
// says what does not have that form; it does not log.
func ParseContainerID(s string) (ContainerID, error) {
	typ, id, found := strings.Cut(s, "://")
	if !found || strings.Contains(id, "://") {
		return ContainerID{}, fmt.Errorf("parsing a container ID: %q is not of the form type://id", s)
	}
	return ContainerID{Type: typ, ID: id}, nil
}

// IsEmpty reports whether the ID is the zero value.
func (c ContainerID) IsEmpty() bool { return c == ContainerID{} }

// ParseString sets the ID from the form of String, in quotation marks or not. If the data
// does not have that form, the ID stays as it is and the error says so.
func (c *ContainerID) ParseString(data string) error {
	id, err := ParseContainerID(strings.Trim(data, `"`))
	if err == nil {
		*c = id
	}
	return err
}

// MarshalJSON implements json.Marshaler: a string in the form of String.
func (c ContainerID) MarshalJSON() ([]byte, error) { return json.Marshal(c.String()) }

// UnmarshalJSON implements json.Unmarshaler: it takes what MarshalJSON returns. A null
// changes nothing.
func (c *ContainerID) UnmarshalJSON(data []byte) error {
	var s *string
	if err := json.Unmarshal(data, &s); err != nil {
		return fmt.Errorf("parsing a container ID: %w", err)
	}
	if s == nil {
		return nil
	}
	id, err := ParseContainerID(*s)
	if err == nil {
		*c = id
	}
	return err
}
