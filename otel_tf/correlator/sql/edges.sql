-- Happened-before edges between the events of spans: (src, dst, min_ns, kind), event = 2*row + (0 start, 1 end).
-- Input: spans(row, trace_hi, trace_lo, span_id, parent_id, kind, failed, role, timeline, start_ns, end_ns),
-- with start_ns and end_ns the local times of the timeline, and links(row, trace_hi, trace_lo, span_id).
-- kind: 0 nested, 1 request, 2 response, 3 context, 4 link.
WITH pairs AS (
  SELECT c.row AS child, p.row AS parent, c.role AS child_role, p.role AS parent_role,
         c.kind AS child_kind, p.kind AS parent_kind, p.failed AS parent_failed,
         c.timeline = p.timeline AS nested, c.end_ns <= p.end_ns AS enclosed
  FROM spans c JOIN spans p
    ON c.parent_id = p.span_id AND c.trace_lo = p.trace_lo AND c.trace_hi = p.trace_hi
  WHERE c.parent_id <> 0 AND c.row <> p.row
)
-- A parent has begun before its child does, wherever the child runs. The one exception is ours: the root
-- `step` span of a synchronous step is the chief's own step, which the other workers did not wait for.
SELECT 2 * parent AS src, 2 * child AS dst, CAST(1 AS BIGINT) AS min_ns,
       CASE WHEN nested THEN 0 WHEN parent_kind = 3 AND child_kind = 2 THEN 1 ELSE 3 END AS kind
FROM pairs
WHERE nested OR parent_role <> 1 OR parent_kind = 3
UNION ALL
-- A child that ends within its parent on the same timeline was waited for; one that ends later is asynchronous.
SELECT 2 * child + 1, 2 * parent + 1, CAST(1 AS BIGINT), 0
FROM pairs
WHERE nested AND enclosed
UNION ALL
-- A call that succeeded returned after the callee ended. A failed one (a deadline) proves nothing.
SELECT 2 * child + 1, 2 * parent + 1, CAST(1 AS BIGINT), 2
FROM pairs
WHERE NOT nested AND parent_kind = 3 AND child_kind = 2 AND NOT parent_failed
UNION ALL
-- What is linked had begun; a receive may wait for its send, so there only the end comes after it.
SELECT 2 * l.row, CASE WHEN s.role = 4 THEN 2 * k.row + 1 ELSE 2 * k.row END, CAST(1 AS BIGINT), 4
FROM links k
JOIN spans l ON k.span_id = l.span_id AND k.trace_lo = l.trace_lo AND k.trace_hi = l.trace_hi
JOIN spans s ON s.row = k.row
WHERE l.row <> k.row
