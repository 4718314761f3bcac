package peer

import (
	"strings"
	"time"
)

// Product is the value of all scenarios: PayloadSize bytes as MessagePack.
type Product struct {
	ID          int64 // the number of the load that made it
	Name        string
	Description string
	Price       float64
	Stock       int32 // what the origin held when that load began: 1, or 2 after a change
	Tags        []string
	Updated     time.Time // when that load ended
}

// PayloadSize is the length of a Product as MessagePack.
const PayloadSize = 300

// NewProduct returns the product that a load makes.
func NewProduct(load int64, stock int32, at time.Time) *Product {
	return &Product{
		ID:          load,
		Name:        "Kettle, stainless steel, 1.7 l",
		Description: strings.Repeat("It boils a litre in two minutes. ", 5) + "Quiet",
		Price:       39.9,
		Stock:       stock,
		Tags:        []string{"kitchen", "steel", "kettle"},
		Updated:     at,
	}
}
