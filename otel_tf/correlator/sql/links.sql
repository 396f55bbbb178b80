-- Edges (src, dst) from linked spans to those that link to them; event = 2*row + (0 start, 1 end).
-- What is linked had begun; a receive (role 4) may wait for its send, so there only the end comes after it.
-- Input: spans as in edges.sql, links(row, trace_hi, trace_lo, span_id): row of the linking span, ids of the other.
SELECT DISTINCT 2 * l.row AS src, CASE WHEN s.role = 4 THEN 2 * k.row + 1 ELSE 2 * k.row END AS dst
FROM links k
JOIN spans l ON k.span_id = l.span_id AND k.trace_lo = l.trace_lo AND k.trace_hi = l.trace_hi
JOIN spans s ON s.row = k.row
WHERE l.row <> k.row
