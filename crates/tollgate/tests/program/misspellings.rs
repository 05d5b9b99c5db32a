//! `rules check` on configurations with one misspelt name each: where a misspelt name would limit nothing, it is shown.

use crate::test_server::run;
use tollgate_test_kit::TestFolder;

/// A configuration where only a gateway asks, so that all attributes are known.
const GATEWAY: &str = "\
server: { grpc: disabled, resp: disabled }
forward_auth: { gateway: traefik }
trusted_proxies: [127.0.0.1]
attributes: { merchant: header:x-merchant-id, tier: header:x-tier, points: header:x-points }
";

/// The place of the name.
const NAME: &str = "@";

struct Case {
    /// Settings before the rules.
    settings: &'static str,
    /// The rest, with [`NAME`] in it.
    text: &'static str,
    right: &'static str,
    wrong: &'static str,
    /// True if the configuration is rejected, false if it is accepted with a warning.
    is_error: bool,
}

const fn error(settings: &'static str, text: &'static str, right: &'static str, wrong: &'static str) -> Case {
    Case {
        settings,
        text,
        right,
        wrong,
        is_error: true,
    }
}

const fn warning(settings: &'static str, text: &'static str, right: &'static str, wrong: &'static str) -> Case {
    Case {
        is_error: false,
        ..error(settings, text, right, wrong)
    }
}

const CASES: [Case; 24] = [
    // Attributes, where every caller's are known.
    error(
        GATEWAY,
        "rules: [{ id: a, when: { @: /login }, limit: 5/min }]",
        "path",
        "pth",
    ),
    error(
        GATEWAY,
        "rules: [{ id: a, per: @, limit: 5/min }]",
        "merchant",
        "merchnt",
    ),
    error(
        GATEWAY,
        "rules: [{ id: a, per: ip, limit: 5/min, by: { @: { free: 1/min } } }]",
        "tier",
        "teir",
    ),
    error(
        GATEWAY,
        "rules: [{ id: a, per: merchant, limit: 5/min, overrides: [{ @: m_1, limit: 9/min }] }]",
        "merchant",
        "mercahnt",
    ),
    error(
        GATEWAY,
        "rules: [{ id: a, per: ip, limit: 50/min, cost: { attribute: @, default: 1 } }]",
        "points",
        "pionts",
    ),
    // Attributes that callers choose.
    warning(
        "",
        "rules: [{ id: a, when: { @: /login }, limit: 5/min }]",
        "endpoint",
        "endpiont",
    ),
    warning("", "rules: [{ id: a, per: @, limit: 5/min }]", "merchant", "merchnt"),
    warning(
        "",
        "rules: [{ id: a, per: project, limit: 50/min }, { id: b, per: @, when: { endpoint: /x }, limit: 5/min }]",
        "project",
        "projcet",
    ),
    warning(
        "",
        "rules: [{ id: a, per: user, limit: 50/min, cost: { attribute: @, default: 1 } }]",
        "points",
        "ponts",
    ),
    warning(
        "attributes: { basket: caller }\n",
        "rules: [{ id: a, per: @, limit: 50/min }]",
        "basket",
        "baskte",
    ),
    // Domains.
    warning(
        "",
        "rules: [{ id: a, domain: api, limit: 9/s }, { id: b, domain: @, per: user, limit: 5/min }]",
        "api",
        "apii",
    ),
    warning(
        "",
        "domain: @\nrules: [{ id: a, per: user, limit: 5/min }]",
        "default",
        "defualt",
    ),
    // Values of `by`.
    warning(
        "",
        "rules:\n- { id: a, per: user, limit: 9/s, by: { tier: { free: 1/s, enterprise: 99/s } } }\n\
         - { id: b, when: { endpoint: /x }, per: user, limit: 5/min, by: { tier: { free: 2/min, @: 50/min } } }\n",
        "enterprise",
        "enterprse",
    ),
    warning(
        "",
        "rules:\n- { id: a, per: user, limit: 9/s, by: { tier: { enterprise: 99/s } } }\n\
         - { id: b, when: { tier: @ }, per: user, limit: 5/min }\n",
        "enterprise",
        "enterprize",
    ),
    // Headers.
    warning(
        "forward_auth: { gateway: traefik }\ntrusted_proxies: []\n",
        "attributes: { merchant: header:@ }\nrules: [{ id: a, per: merchant, limit: 5/min }]",
        "x-merchant-id",
        "x-merchnat-id",
    ),
    warning(
        "forward_auth: { gateway: traefik }\ntrusted_proxies: []\n",
        "attributes: { key: header:@ }\nrules: [{ id: a, per: key, limit: 5/min }]",
        "x-api-key",
        "x-api-kye",
    ),
    error(
        "forward_auth: { gateway: traefik }\ntrusted_proxies: []\n",
        "attributes: { merchant: @:x-merchant-id }\nrules: [{ id: a, per: merchant, limit: 5/min }]",
        "header",
        "heder",
    ),
    // Algorithms and their options.
    error(
        "",
        "rules: [{ id: a, per: user, limit: 5/min, algorithm: @ }]",
        "token_bucket",
        "tokn_bucket",
    ),
    error(
        "",
        "rules: [{ id: a, per: user, limit: 5/min, algorithm: sliding_log, @: 50ms }]",
        "min_interval",
        "min_intervall",
    ),
    error(
        "",
        "rules: [{ id: a, per: user, limit: 5, algorithm: concurrency, @: 30s }]",
        "lease_ttl",
        "leas_ttl",
    ),
    // Units.
    error("", "rules: [{ id: a, per: user, limit: 100/@ }]", "min", "mn"),
    error("", "rules: [{ id: a, per: user, limit: 100/@ }]", "day", "dya"),
    // Settings.
    error(
        "trusted_proxies: []\n",
        "forward_auth: { gateway: traefik, unknown_domain: @ }\nrules: [{ id: a, per: ip, limit: 5/min }]",
        "allow",
        "alow",
    ),
    error(
        "",
        "rules: [{ id: a, per: user, limit: 5/min, mode: @ }]",
        "shadow",
        "shaddow",
    ),
];

#[test]
fn every_misspelt_name_is_shown_with_the_one_that_was_meant() {
    let folder = TestFolder::new();
    for Case {
        settings,
        text,
        right,
        wrong,
        is_error,
    } in CASES
    {
        let check = |name: &str| {
            folder.write("tollgate.yaml", &format!("{settings}{}", text.replace(NAME, name)));
            run(&folder, &["rules", "check", "tollgate.yaml"])
        };
        let (code, stdout, _) = check(right);
        assert_eq!(code, Some(0), "{right}: {stdout}");
        assert!(
            stdout.ends_with("1 file: valid, 0 errors, 0 warnings\n"),
            "{right}: {stdout}"
        );

        let (code, stdout, _) = check(wrong);
        assert_eq!(code, Some(i32::from(is_error)), "{wrong}: {stdout}");
        let label = if is_error { ": error: " } else { ": warning: " };
        assert!(stdout.contains(label), "{wrong}: {stdout}");
        let suggestion = stdout.split("did you mean `").nth(1);
        let suggestion = suggestion.and_then(|rest| rest.split('`').next());
        assert!(
            suggestion.is_some_and(|name| name.contains(right)),
            "{wrong} for {right}: {stdout}"
        );
        // At the name itself, with its line.
        assert!(stdout.contains(" | ") && stdout.contains('^'), "{wrong}: {stdout}");
    }
}

#[test]
fn an_attribute_that_callers_send_is_declared_and_then_known() {
    let folder = TestFolder::new();
    let settings = |attributes: &str| {
        format!(
            "server: {{ grpc: disabled, resp: disabled }}\nforward_auth: {{ gateway: traefik }}\ntrusted_proxies: []\n\
             attributes: {{ {attributes} }}\nrules: [{{ id: a, per: account, limit: 5/min }}]\n"
        )
    };
    for (attributes, expected) in [
        ("account: caller", 0),
        ("account: header:x-account", 0),
        ("endpoint: path", 1),
        ("account: none", 1),
    ] {
        folder.write("tollgate.yaml", &settings(attributes));
        let (code, stdout, _) = run(&folder, &["rules", "check", "tollgate.yaml"]);
        assert_eq!(code, Some(expected), "{attributes}: {stdout}");
    }
    // The same stops a server at its start.
    folder.write("tollgate.yaml", &settings("endpoint: path"));
    let (code, _, stderr) = run(&folder, &["serve", "--config", "tollgate.yaml"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(
        stderr.contains("no caller provides the attribute `account`"),
        "{stderr}"
    );
}
