package core

// A Stat is what one rule has counted since it was added.
type Stat struct {
	Rule       string
	Admitted   uint64            // requests that the rule let pass and all others too
	Refused    map[Reason]uint64 // requests that were refused and this rule was named
	Shadowed   uint64            // requests that a Shadow rule would have refused
	Failed     uint64            // admitted requests whose outcome was marked failed
	Canceled   uint64            // requests whose context ended while they waited
	Overflowed uint64            // decisions about keys beyond MaxKeys
	Empty      uint64            // decisions about requests that lack the rule's key
	InFlight   int               // units held now
	Waiting    int               // requests that wait now
	Keys       int               // keys counted apart now
}
