"""States as coded fragments: any m of n = m + k give the state back (A-FP4S, sec. 3.3 and Table 2). Pure.

`encoding` makes fragments, `decoding` rebuilds the state or lost fragments, `fragment` is the written format, `layout`
how a state is cut, `checksums` what guards it, `codec` the Reed-Solomon code, `faults` what can be wrong.
Import from the modules: importing this package alone loads neither numpy nor pyeclib.
"""
