-- The tightest bound of each (source window, destination window): origin(src) - origin(dst) <= hard, rounded up
-- to be safe; gap is the same for clocks that do not drift at all, rounded down.
-- Input: crossings(src_epoch, dst_epoch, x, y, gap, unsure): an edge between two clocks, x and y the local times
-- of its ends counted from the epochs' first windows, gap = y - x - min_ns + the resolution of both stamps, unsure
-- what to add for a hard bound, since an end may lie on the other side of a clock's step;
-- epochs(epoch, slope, soft, hard): the shift's slope and two bounds on its residual, in units of 2^-30;
-- settings(bits): a window is 2^bits ns.
-- A bound holds at the windows' centres: the way there is paid with the drift that may have happened on it.
WITH placed AS (
  SELECT src_epoch, dst_epoch, x >> bits AS src_window, y >> bits AS dst_window, gap, unsure,
         x - (((x >> bits) << bits) + (CAST(1 AS BIGINT) << (bits - 1))) AS dx,
         y - (((y >> bits) << bits) + (CAST(1 AS BIGINT) << (bits - 1))) AS dy
  FROM crossings CROSS JOIN settings
),
bounded AS (
  SELECT src_epoch, dst_epoch, src_window, dst_window,
         gap - ((s.slope * dx) >> 30) + ((d.slope * dy) >> 30) AS gap,
         ((s.soft * ABS(dx)) >> 30) + ((d.soft * ABS(dy)) >> 30) AS soft,
         ((s.hard * ABS(dx)) >> 30) + ((d.hard * ABS(dy)) >> 30) + unsure AS hard
  FROM placed
  JOIN epochs s ON s.epoch = src_epoch
  JOIN epochs d ON d.epoch = dst_epoch
)
SELECT src_epoch, dst_epoch, src_window, dst_window,
       MIN(gap) - 2 AS gap, MIN(gap + soft) + 2 AS soft, MIN(gap + hard) + 2 AS hard, COUNT(*) AS edges
FROM bounded
GROUP BY src_epoch, dst_epoch, src_window, dst_window
