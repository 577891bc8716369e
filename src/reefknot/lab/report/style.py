"""Style: the one sheet of a report; light, dark, narrow and on paper."""

_LIGHT = """
  --paper: #fcfcfb; --panel: #f3f5f5; --ink: #1b2228; --quiet: #56616b; --rule: #dde2e4;
  --grid: #e8ecee; --a: #0b5c7a; --b: #b0501a; --zero: #77828b; --tint: #77828b34;
  --shade: #1b222838;
"""

_DARK = """
  --paper: #12171b; --panel: #1a2127; --ink: #e4e9ec; --quiet: #9ca8b1; --rule: #2e373f;
  --grid: #232b32; --a: #68b7d7; --b: #e39a68; --zero: #8b969f; --tint: #77828b28;
  --shade: #000000b0;
"""

_RULES = """
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font-family: ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue",
    "Liberation Sans", Arial, sans-serif;
  font-size: 16px; font-variant-numeric: tabular-nums; }
main, footer { max-width: 68rem; margin: 0 auto; padding: 0 1.5rem; }
header { padding: 3.5rem 0 1rem; }
h1, h2, h3, p, dl, dd, figure, ul { margin: 0; padding: 0; }
.mark { color: var(--quiet); font-size: .8125rem; letter-spacing: .02em; }
h1 { margin-top: .35rem; font-size: 2.125rem; line-height: 1.15; font-weight: 650;
  letter-spacing: -.02em; overflow-wrap: anywhere; }
.method { margin-top: .35rem; color: var(--quiet); font-size: 1.0625rem; overflow-wrap: anywhere; }
.headline { margin-top: 2rem; font-size: 1.5rem; line-height: 1.35; letter-spacing: -.01em; }
.headline b { font-weight: 650; }
.headline .rate { color: var(--a); font-weight: 650; }
.headline span { white-space: nowrap; }
.weights { margin-top: 1rem; max-width: 100%; }
.weights div { height: .5rem; border-radius: 1px; min-width: 2px; background: var(--a);
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.weights .before { background: var(--rule); margin-bottom: .25rem; }
section { padding: 2.5rem 0 .5rem; }
h2 { padding-bottom: .5rem; border-bottom: 1px solid var(--rule); font-size: 1.25rem;
  line-height: 1.3; font-weight: 650; letter-spacing: -.01em; }
h3 { font-size: .9375rem; line-height: 1.4; font-weight: 650; overflow-wrap: anywhere; }
.lead { margin-top: .75rem; max-width: 42rem; color: var(--quiet); font-size: .9375rem; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(8.75rem, 1fr));
  gap: 1.5rem; margin: 1.5rem 0 2rem; }
.facts dt { color: var(--quiet); font-size: .8125rem; }
.facts dd.big { white-space: nowrap; font-size: 1.5rem; line-height: 1.3; font-weight: 600;
  letter-spacing: -.01em; }
.facts dd.note { color: var(--quiet); font-size: .8125rem; line-height: 1.4; }
.figures { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 2.25rem 2rem;
  margin-top: 1.5rem; align-items: start; }
figure.wide { grid-column: 1 / -1; }
figure { break-inside: avoid; }
.pictures { columns: 2; column-gap: 2rem; margin-top: 1.5rem; }
.pictures figure { padding-bottom: 2rem; }
.pictures figure.wide { display: flex; flex-flow: row-reverse wrap; justify-content: flex-end;
  gap: 0 1.5rem; column-span: all; }
.pictures figure.wide figcaption { flex: 1 1 12rem; }
figcaption { margin-bottom: .5rem; }
figcaption p { color: var(--quiet); font-size: .8125rem; line-height: 1.4;
  overflow-wrap: anywhere; }
svg.plot { display: block; width: 100%; height: auto; overflow: visible; }
svg.plot text { fill: var(--quiet); font-size: 12px; }
svg.plot text.y { text-anchor: end; }
svg.plot text.x { text-anchor: middle; }
svg.plot text.end { fill: var(--ink); font-weight: 600; }
.grid { stroke: var(--grid); stroke-width: 1; }
.axis { stroke: var(--zero); stroke-width: 1; }
.level { stroke: var(--b); stroke-width: 1; stroke-dasharray: 4 3; }
.edge { stroke: var(--zero); stroke-width: 1; stroke-dasharray: 1 3; }
.phase { fill: var(--a); fill-opacity: .07; }
.line { fill: none; stroke: var(--a); stroke-width: 1.75; stroke-linejoin: round;
  stroke-linecap: round; }
.line.negative, .line.positive, .line.zero { stroke-width: 1.25; }
.line.positive { stroke: var(--b); } .line.zero { stroke: var(--zero); }
.dot { fill: var(--a); } .dot.positive { fill: var(--b); } .dot.zero { fill: var(--zero); }
.spot { fill: transparent; } .spot:hover { fill: var(--b); }
.band { fill: var(--a); fill-opacity: .16; } .band.positive { fill: var(--b); }
.band.zero { fill: var(--zero); }
.bar { fill: var(--a); } .bar.positive { fill: var(--b); } .bar.zero { fill: var(--zero); }
.stem { stroke: var(--a); stroke-width: 1.5; } .stem.positive { stroke: var(--b); }
.stem.zero { stroke: var(--zero); }
img.pixels { display: block; max-width: 100%; height: auto; background: var(--paper);
  outline: 1px solid var(--rule);
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
img.crisp { image-rendering: pixelated; }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1.5rem; margin-top: .75rem;
  color: var(--quiet); font-size: .8125rem; }
.ramp { display: inline-flex; align-items: center; gap: .5rem; }
.swatch { width: .75rem; height: .75rem; background: var(--tint); outline: 1px solid var(--rule);
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.swatch.alive, .swatch.places { background: var(--a); } .swatch.empty { background: var(--paper); }
.scroll { overflow: auto; margin-top: 1rem; background-color: var(--paper);
  background-image: linear-gradient(90deg, var(--paper) 50%, transparent),
    linear-gradient(270deg, var(--paper) 50%, transparent),
    linear-gradient(90deg, var(--shade), transparent),
    linear-gradient(270deg, var(--shade), transparent);
  background-position: left, right, left, right; background-repeat: no-repeat;
  background-size: 2.5rem 100%, 2.5rem 100%, .875rem 100%, .875rem 100%;
  background-attachment: local, local, scroll, scroll; }
.hint { display: none; margin-top: 1rem; color: var(--quiet); font-size: .8125rem; }
.numbers { margin-top: .25rem; }
.numbers summary { color: var(--quiet); font-size: .8125rem; font-weight: 400; }
.numbers .scroll { max-width: 20rem; max-height: 16rem; margin-top: .25rem; }
.numbers thead th { position: sticky; top: 0; background: var(--paper); }
.scroll:focus-visible { outline: 2px solid var(--a); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .875rem; line-height: 1.4; }
th, td { padding: .4375rem 1rem .4375rem 0; border-bottom: 1px solid var(--grid);
  text-align: left; vertical-align: baseline; }
th:last-child, td:last-child { padding-right: 0; }
thead th { border-bottom-color: var(--rule); color: var(--quiet); font-weight: 500;
  font-size: .8125rem; white-space: nowrap; vertical-align: bottom; }
tbody th { font-weight: 500; overflow-wrap: anywhere; min-width: 7rem; }
tfoot th, tfoot td { border-bottom: 0; border-top: 1px solid var(--rule); font-weight: 600; }
.num { text-align: right; white-space: nowrap; }
.value { text-align: right; overflow-wrap: anywhere; }
.soft { color: var(--quiet); }
td.meter { width: 38%; min-width: 5rem; }
.bars { display: flex; }
.bars div { height: .5rem; min-width: 1px; background: var(--a);
  -webkit-print-color-adjust: exact; print-color-adjust: exact; }
.bars .held, .bars .other, .swatch.other { background: var(--zero); }
.bars .values, .swatch.values { background: var(--b); }
.pair { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 3rem; }
code, pre { font-family: ui-monospace, "SF Mono", "Cascadia Mono", Menlo, Consolas,
  "DejaVu Sans Mono", monospace; font-size: .8125rem; }
details { margin-top: 1.25rem; }
summary { cursor: pointer; font-weight: 500; }
pre { margin: .75rem 0 0; padding: 1rem; background: var(--panel); border-radius: 4px;
  line-height: 1.55; white-space: pre-wrap; overflow-wrap: anywhere; }
footer { margin-top: 2.5rem; padding-top: 1rem; padding-bottom: 3rem; color: var(--quiet);
  font-size: .8125rem; }
@media (max-width: 44rem) {
  main, footer { padding-left: 1rem; padding-right: 1rem; }
  header { padding-top: 2rem; }
  h1 { font-size: 1.625rem; }
  .headline { font-size: 1.25rem; margin-top: 1.5rem; }
  .pictures { columns: 1; }
  .figures, .pair { grid-template-columns: minmax(0, 1fr); }
  .facts { grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 1.25rem 1rem; }
  svg.plot text { font-size: 15px; }
  td.meter { min-width: 3rem; }
}
@media screen and (max-width: 24rem) { td.meter { display: none; } }
@media screen and (max-width: 56rem) {
  .hint { display: block; }
  .hint + .scroll { margin-top: .25rem; }
  .wide table { min-width: 56rem; } /* wider than the screen, so that the hint is always true */
  .wide th:first-child { position: sticky; left: 0; max-width: 9rem; padding-right: .5rem;
    background: var(--paper); }
}
@media screen and (max-width: 44rem) { .wide table { min-width: 44rem; } }
@media print {
  body { font-size: 10.5pt; }
  main, footer { max-width: none; padding: 0; }
  header { padding-top: 0; }
  section { padding-top: 1.5rem; }
  :root { --paper: #ffffff; }
  h2, h3, .lead, .legend, figcaption { break-after: avoid; }
  tr, .facts > div { break-inside: avoid; }
  .figures { gap: 1.25rem 1.5rem; }
  .scroll { overflow: visible; }
}
"""

# Paper is always light: the dark colors are for screens only.
SHEET = (
    f":root {{ color-scheme: light dark; {_LIGHT} }}\n"
    f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}\n{_RULES}"
)
