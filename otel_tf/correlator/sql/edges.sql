-- What every span's parent says about both: one row a child, with the kind of the edge between their starts (parent
-- to child) and between their ends (child to parent); -1 where there is none.
-- Input: spans(row, trace_hi, trace_lo, span_id, parent_id, kind, failed, role, timeline); kind 2 is a server, 3 a
-- client; role 1 is a span `step`, 2 `train_step`, 5 `execute`, 6 `function_run` and `region`.
-- Kinds of edges: 0 nested, 1 request, 2 response, 3 context.
SELECT child, parent,
       -- A parent has begun before its child does, wherever the child runs. The one exception is ours: the root
       -- `step` span of a synchronous step is the chief's own step, which the other workers did not wait for.
       -- Neither has a step that was stamped inside the graph (a server's) surely begun before its ops, since nothing
       -- in the graph waits for the stamp; nor a run or a region on one host before its ops on another.
       CASE WHEN op THEN -1 WHEN nested THEN 0 WHEN call THEN 1 WHEN parent_role = 1 THEN -1 ELSE 3 END AS start_kind,
       -- On one timeline a parent may have waited for its child: that the readings tell. A call that succeeded
       -- returned after the callee ended; a failed one (a deadline) proves nothing.
       CASE WHEN op THEN -1 WHEN nested THEN 0 WHEN call AND NOT parent_failed THEN 2 ELSE -1 END AS end_kind
FROM (
  SELECT c.row AS child, p.row AS parent, p.role AS parent_role, p.failed AS parent_failed,
         c.kind = 2 AND p.kind = 3 AS call, c.timeline = p.timeline AS nested,
         c.kind NOT IN (2, 3) AND (p.role = 5 OR (p.role = 2 AND p.kind = 2)
                                   OR (p.role = 6 AND c.timeline <> p.timeline)) AS op
  FROM spans c JOIN spans p
    ON c.parent_id = p.span_id AND c.trace_lo = p.trace_lo AND c.trace_hi = p.trace_hi
  WHERE c.parent_id <> 0 AND c.row <> p.row
) pairs
