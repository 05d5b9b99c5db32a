-- Checks a request with Tollgate. Usage: http-request lua.tollgate http://127.0.0.1:8080/v1/forward/DOMAIN
-- Stores the response in txn.tollgate_status, _body, _ratelimit, _ratelimit_policy, _retry_after and _tollgate_lease; without a
-- response the status is 503 and txn.tollgate_is_down is true.

-- The client headers that `attributes` in tollgate.yaml names. No others are forwarded.
local FORWARDED_HEADERS = { "x-merchant-id" }
local RESPONSE_HEADERS = { "ratelimit", "ratelimit-policy", "retry-after", "tollgate-lease" }
local TIMEOUT_MS = 1000

local token = os.getenv("TOLLGATE_TOKEN")

core.register_action("tollgate", { "http-req" }, function(txn, url)
    local client = txn.http:req_get_headers()
    local headers = {
        ["x-forwarded-method"] = { txn.f:method() },
        ["x-forwarded-uri"] = { txn.f:pathq() },
        ["x-forwarded-for"] = { txn.f:src() },
    }
    if client["host"] then
        headers["x-forwarded-host"] = { client["host"][0] }
    end
    if token then
        headers["x-tollgate-token"] = { token }
    end
    for _, name in ipairs(FORWARDED_HEADERS) do
        if client[name] then
            headers[name] = {}
            for index = 0, #client[name] do
                table.insert(headers[name], client[name][index])
            end
        end
    end

    local response = core.httpclient():get({ url = url, headers = headers, timeout = TIMEOUT_MS })
    -- HAProxy stands in for a server that does not respond, with a page of its own; the 503 of Tollgate is a problem document.
    local content_type = response.headers and response.headers["content-type"]
    local is_problem = content_type and content_type[0] == "application/problem+json"
    txn:set_var("txn.tollgate_is_down", response.status >= 500 and not is_problem)
    txn:set_var("txn.tollgate_status", response.status)
    txn:set_var("txn.tollgate_body", response.body or "")
    for _, name in ipairs(RESPONSE_HEADERS) do
        local value = response.headers and response.headers[name]
        if value then
            txn:set_var("txn.tollgate_" .. name:gsub("-", "_"), value[0])
        end
    end
end, 1)
