-- Which row links to which.
-- Input: spans(row, trace_hi, trace_lo, span_id, …), links(row, trace_hi, trace_lo, span_id): the row of the linking
-- span and the ids of the linked one.
SELECT DISTINCT l.row AS linked, k.row AS linking
FROM links k
JOIN spans l ON k.span_id = l.span_id AND k.trace_lo = l.trace_lo AND k.trace_hi = l.trace_hi
WHERE l.row <> k.row
