package main

import (
	"bytes"
	"fmt"
	"html"
	"slices"
	"time"
)

// The picture, in pixels: panels below each other, with one axis of time.
const (
	wide, left, right = 880.0, 60.0, 14.0
	above, high, step = 90.0, 84.0, 122.0 // the first panel's top, its height, from panel to panel
	bucket            = 100 * time.Millisecond
)

const style = `<style>
text{font:13px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;fill:#1f2328}
.b{font-weight:600}.m{fill:#59636e}.e{text-anchor:end}.c{text-anchor:middle}.h{font-size:16px}
path{fill:none;stroke-width:1}.ask{stroke:#818b98;stroke-width:1.6;stroke-dasharray:2 2}.axis{stroke:#818b98}.grid{stroke:#818b98;stroke-opacity:.25}
.bar{fill:#54a0f0}.sum{stroke:#d4730c;stroke-width:1.8;stroke-linejoin:round}.max{stroke:#d1242f;stroke-width:1.3;stroke-dasharray:6 4}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.m{fill:#9198a1}.bar{fill:#388bfd}.sum{stroke:#f0a04b}.max{stroke:#ff7b72}}
</style>
`

// A frame maps a panel's numbers to pixels.
type frame struct {
	scene *scene
	top   float64
	span  time.Duration
	most  float64 // calls at the panel's top
}

func (f frame) x(t time.Duration) float64 {
	return left + (wide-left-right)*float64(t)/float64(f.span)
}

func (f frame) y(calls float64) float64 { return f.top + high*(1-calls/f.most) }

// draw is the scenes as an SVG that needs nothing else, in light and dark.
func draw(scenes []*scene) []byte {
	var b bytes.Buffer
	first := scenes[0].config
	tall := above + step*float64(len(scenes)-1) + high + 42
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" role="img">`+"\n", wide, tall)
	fmt.Fprintf(&b, "<title>%d calls at once every %v, under %d limits of %d per second</title>\n", first.goroutines, apart, len(scenes), first.limit)
	b.WriteString(style)
	fmt.Fprintf(&b, `<text class="b h" x="%.0f" y="22">The same calls under four limits of %d per second</text>`+"\n", left, first.limit)
	legend(&b, first)
	for i, s := range scenes {
		f := frame{s, above + step*float64(i), first.span, 1.1 * float64(first.limit)}
		panel(&b, f)
		if i == len(scenes)-1 {
			for t := time.Duration(0); t <= f.span; t += time.Second {
				fmt.Fprintf(&b, `<text class="m c" x="%.1f" y="%.1f">%d</text>`, f.x(t), f.y(0)+18, t/time.Second)
			}
		}
	}
	fmt.Fprintf(&b, `<text class="m e" x="%.0f" y="%.0f">time in seconds</text>`+"\n</svg>\n", wide-right, tall-6)
	return b.Bytes()
}

// legend says what is what.
func legend(b *bytes.Buffer, c config) {
	x := left
	entry := func(mark, text string, width float64) {
		fmt.Fprintf(b, mark, x)
		fmt.Fprintf(b, `<text x="%.0f" y="48">%s</text>`+"\n", x+24, text)
		x += width
	}
	entry(`<path class="ask" d="M%.0f 36m9 0v15"/>`, fmt.Sprintf("%d calls ask at once", c.goroutines), 184)
	entry(`<path class="bar" d="M%.0f 38h18v11h-18z"/>`, fmt.Sprintf("pass, in each %d ms", bucket.Milliseconds()), 186)
	entry(`<path class="sum" d="M%.0f 44h18"/>`, "passed in the second before", 236)
	entry(`<path class="max" d="M%.0f 44h18"/>`, "the limit", 0)
}

// panel draws one scene: its limit, what passed in each bucket, and at each instant
// how many passed in the second before, as far as that is certain.
func panel(b *bytes.Buffer, f frame) {
	s, c := f.scene, f.scene.config
	fmt.Fprintf(b, `<text class="b" x="%.0f" y="%.0f">%s</text><text class="m e" x="%.0f" y="%.0f">%s</text>`+"\n",
		left, f.top-9, html.EscapeString(s.title), wide-right, f.top-9, s.summary())

	fmt.Fprintf(b, `<text class="m c" transform="translate(13 %.1f)rotate(-90)">calls</text>`+"\n", f.y(float64(c.limit)/2))
	for _, n := range slices.Compact([]int{0, c.limit / 2, c.limit}) {
		class := "grid"
		if n == 0 {
			class = "axis"
		}
		fmt.Fprintf(b, `<path class="%s" d="M%.0f %.1fH%.0f"/><text class="m e" x="%.0f" y="%.1f">%d</text>`+"\n",
			class, left, f.y(float64(n)), wide-right, left-6, f.y(float64(n))+4, n)
	}
	for t := time.Duration(0); t <= f.span; t += time.Second {
		fmt.Fprintf(b, `<path class="axis" d="M%.1f %.1fv4"/>`, f.x(t), f.y(0))
	}
	for t := time.Duration(0); t < f.span; t += apart {
		fmt.Fprintf(b, `<path class="ask" d="M%.1f %.1fV%.1f"/>`, f.x(t), f.y(0), f.top)
	}

	b.WriteString("\n<path class=\"bar\" d=\"")
	h := newHistory(s.seen.admitted)
	one := f.x(bucket) - f.x(0) - 1
	for t := time.Duration(0); t < f.span; t += bucket {
		from := s.seen.start + int64(t)
		if n := h.endedIn(from, from+int64(bucket)); n > 0 {
			fmt.Fprintf(b, "M%.1f %.1fV%.1fh%.1fV%.1fz", f.x(t)+.5, f.y(0), f.y(float64(n)), one, f.y(0))
		}
	}
	b.WriteString("\"/>\n")

	limit := fmt.Sprintf("M%.0f %.1fH%.0f", left, f.y(float64(c.limit)), wide-right)
	if c.kind == "warmup" {
		limit = fmt.Sprintf("M%.0f %.1fL%.1f %.1fH%.0f", left, f.y(float64(c.from)), f.x(c.over), f.y(float64(c.limit)), wide-right)
	}
	fmt.Fprintf(b, `<path class="max" d="%s"/><path class="sum" d="%s"/>`+"\n", limit, f.sums(h, s.seen.start))
}

// sums is the path of how many passed in the second before. What changes within a
// fortieth of a second of a change is drawn with it: a place that is left and
// taken again at once is no gap that could be seen.
func (f frame) sums(h history, start int64) string {
	var changes []int64
	for _, c := range h.calls {
		changes = append(changes, c.end, c.begin+second)
	}
	slices.Sort(changes)
	var path bytes.Buffer
	fmt.Fprintf(&path, "M%.0f %.1f", left, f.y(0))
	n := 0
	for i := 0; i < len(changes); {
		t := changes[i]
		for ; i < len(changes) && changes[i] < t+int64(25*time.Millisecond); i++ {
		}
		if now := h.within(changes[i-1], second); now != n && t < start+int64(f.span) {
			n = now
			fmt.Fprintf(&path, "H%.1fV%.1f", f.x(time.Duration(t-start)), f.y(float64(n)))
		}
	}
	fmt.Fprintf(&path, "H%.0f", wide-right)
	return path.String()
}
