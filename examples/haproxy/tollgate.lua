-- Asks Tollgate about a request. Used as: http-request lua.tollgate http://127.0.0.1:8080/v1/forward/DOMAIN
-- Leaves what it heard in txn.tollgate_status, _body, _ratelimit, _ratelimit_policy and _retry_after.

-- The headers of clients that `attributes` in tollgate.yaml names. Nothing else of theirs is handed on.
local HANDED_ON = { "x-merchant-id" }
local TOLD = { "ratelimit", "ratelimit-policy", "retry-after" }
local TIMEOUT_MS = 1000

local token = os.getenv("TOLLGATE_TOKEN")

core.register_action("tollgate", { "http-req" }, function(txn, url)
    local asked = txn.http:req_get_headers()
    local headers = {
        ["x-forwarded-method"] = { txn.f:method() },
        ["x-forwarded-uri"] = { txn.f:pathq() },
        ["x-forwarded-for"] = { txn.f:src() },
    }
    if asked["host"] then
        headers["x-forwarded-host"] = { asked["host"][0] }
    end
    if token then
        headers["x-tollgate-token"] = { token }
    end
    for _, name in ipairs(HANDED_ON) do
        if asked[name] then
            headers[name] = {}
            for place = 0, #asked[name] do
                table.insert(headers[name], asked[name][place])
            end
        end
    end

    -- Without an answer the status is 503.
    local answer = core.httpclient():get({ url = url, headers = headers, timeout = TIMEOUT_MS })
    txn:set_var("txn.tollgate_status", answer.status)
    txn:set_var("txn.tollgate_body", answer.body or "")
    for _, name in ipairs(TOLD) do
        local value = answer.headers and answer.headers[name]
        if value then
            txn:set_var("txn.tollgate_" .. name:gsub("-", "_"), value[0])
        end
    end
end, 1)
