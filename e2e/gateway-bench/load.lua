-- The load of wrk: chats of a given length, each of one of TRAJECTORIES trajectories.
-- Environment: BODY_BYTES, TRAJECTORIES, HEADER (names the trajectory), AUTHORIZATION.

local requests, at = {}, 0

function init()
  local body = '{"model":"engine-sim","messages":[{"role":"user","content":"%s"}],"max_tokens":16}'
  body = body:format(("x"):rep(tonumber(os.getenv("BODY_BYTES")) - #body + 2))
  for number = 1, tonumber(os.getenv("TRAJECTORIES")) do
    requests[number] = wrk.format("POST", "/v1/chat/completions", {
      ["Content-Type"] = "application/json",
      ["Authorization"] = os.getenv("AUTHORIZATION"),
      [os.getenv("HEADER")] = "bench-" .. number,
    }, body)
  end
end

function request()
  at = at % #requests + 1
  return requests[at]
end

function done(summary, latency)
  local e = summary.errors
  print(('{"requests":%d,"seconds":%f,"p50_us":%d,"p99_us":%d,"errors":%d}'):format(
    summary.requests, summary.duration / 1e6, latency:percentile(50), latency:percentile(99),
    e.connect + e.read + e.write + e.status + e.timeout))
end
