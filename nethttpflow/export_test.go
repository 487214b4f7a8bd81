package nethttpflow

// Len counts what is remembered.
func (s *Resources) Len() (n int) {
	s.known.Range(func(any, any) bool { n++; return true })
	return n
}
