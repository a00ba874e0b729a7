package rules

import (
	"fmt"
	"testing"

	"github.com/google/nftables"
)

// What a service left is known by its tables, and can be taken away by their name; others' are not touched.
func TestClaims(t *testing.T) {
	w := newWorld(t)
	w.apply(t)
	w.vandal(t, func(c *nftables.Conn) {
		c.AddTable(&nftables.Table{Name: "another", Family: nftables.TableFamilyINet})
	})
	claims, err := Claims(w.cfg.NetNS)
	must(t, err)
	if len(claims) != 1 || claims[0].Table != "daycare" || len(claims[0].Bridges) != 2 || fmt.Sprint(claims[0].Subnets) != "[10.77.1.0/24 10.77.2.0/24]" &&
		fmt.Sprint(claims[0].Subnets) != "[10.77.0.0/22]" {
		t.Errorf("%+v", claims)
	}
	must(t, RemoveTables(w.cfg.NetNS, "daycare"))
	must(t, RemoveTables(w.cfg.NetNS, "daycare"))
	if claims, err = Claims(w.cfg.NetNS); err != nil || len(claims) != 0 {
		t.Errorf("%+v, %v", claims, err)
	}
	if drift, err := w.table.Check(t.Context()); err != nil || drift == "" {
		t.Errorf("%q, %v", drift, err)
	}
}
