//! `admin`: the admin API.

mod settings;

pub use settings::{AdminSettings, AdminToken, AnonymousAccess, ExternalUrl, SubjectDisplay};
pub(crate) use settings::{PRINCIPAL_NAMES, is_principal_name};

use super::reader::SettingsReader;
use crate::control::model::{Digest, Role};
use hyper::Uri;
use tollgate_limiter::core::problem::{Problem, Problems};
use tollgate_limiter::core::yaml::Node;

impl SettingsReader<'_> {
    /// Reads the section. Without it everything has its default.
    pub(super) fn admin(&mut self, node: Option<&Node>) -> AdminSettings {
        let default = AdminSettings::default();
        let Some(fields) = node.and_then(|node| node.fields("`admin`", &KEYS, &mut self.problems)) else {
            return default;
        };
        let external_url = fields.value("external_url").and_then(|node| self.external_url(node));
        let problems = &mut self.problems;
        let anonymous = fields
            .value("anonymous")
            .and_then(|node| node.keyword("access without login", &AnonymousAccess::NAMES, problems))
            .unwrap_or_default();
        let subjects = fields
            .value("subjects")
            .and_then(|node| node.keyword("a display of subjects", &SubjectDisplay::NAMES, problems))
            .unwrap_or_default();
        if let (AnonymousAccess::Admin, Some(node)) = (anonymous, fields.value("anonymous")) {
            let text = "every process on this machine, and every web page it fetches for others, may change the rules of the fleet";
            let hint = "for demos only; remove `anonymous: admin`, and use the setup link that the server prints";
            problems.push(Problem::warning(&node.location, text).with_hint(hint));
        }
        if let (AnonymousAccess::Admin | AnonymousAccess::Viewer, Some(_), Some(node)) =
            (anonymous, &external_url, fields.value("anonymous"))
        {
            let text = "behind the proxy of `external_url` every request comes from this machine: access without login would be public";
            let hint = "write `anonymous: none` and use logins or tokens, or remove `external_url`";
            problems.error_with(&node.location, text, hint);
        }
        let ui_dir = fields.value("ui_dir").and_then(|node| self.path(node, "a folder"));
        let mut problems = Problems::new();
        let mut tokens = Vec::new();
        if let Some((file, _)) = self.tokens_file(&fields, &mut problems) {
            read_file(&file, &mut tokens, &mut problems);
        }
        if let Some(list) = fields.value("tokens") {
            read_tokens(list, &mut tokens, &mut problems);
        }
        self.extend_without_snippets(problems);
        AdminSettings {
            external_url,
            anonymous,
            subjects,
            tokens,
            ui_dir,
        }
    }

    fn external_url(&mut self, node: &Node) -> Option<ExternalUrl> {
        let text = node.text("the URL of the admin API", &mut self.problems)?;
        let external = parse_url(text);
        if external.is_none() {
            self.problems.error_with(
                &node.location,
                "not the URL of a server",
                "write scheme, host and perhaps a port, without a path: `https://tollgate.example.com`",
            );
        }
        external
    }
}

/// The host of a URL that has nothing else. Browsers leave out the usual port.
fn parse_url(text: &str) -> Option<ExternalUrl> {
    let uri: Uri = text.parse().ok()?;
    let is_https = match uri.scheme_str()? {
        "https" => true,
        "http" => false,
        _ => return None,
    };
    let authority = uri.authority()?;
    let has_path = !matches!(uri.path(), "" | "/") || uri.query().is_some();
    if has_path || authority.host().is_empty() || authority.as_str().contains('@') || text.contains('#') {
        return None;
    }
    let usual_port = if is_https { 443 } else { 80 };
    let authority = match authority.port_u16() {
        Some(port) if port != usual_port => format!("{}:{port}", authority.host()),
        _ => authority.host().to_owned(),
    };
    Some(ExternalUrl { is_https, authority })
}

fn read_file(file: &Node, tokens: &mut Vec<AdminToken>, problems: &mut Problems) {
    let Some(fields) = file.fields("a tokens file", &["tokens"], problems) else {
        return;
    };
    let example = "tokens: [{ name: ci, sha256: …, role: editor }]";
    if let Some(list) = fields.require("a tokens file", "tokens", example, problems) {
        read_tokens(list, tokens, problems);
    }
}

fn read_tokens(list: &Node, tokens: &mut Vec<AdminToken>, problems: &mut Problems) {
    for node in list.list("a list of tokens", problems).unwrap_or_default() {
        let Some(token) = read_token(node, problems) else {
            continue;
        };
        let is_double = tokens
            .iter()
            .any(|other| other.name == token.name || other.sha256 == token.sha256);
        match is_double {
            true => problems.error_with(
                &node.location,
                "two tokens have the same name, or the same digest",
                "give each program a token of its own, so that the audit log can tell them apart",
            ),
            false => tokens.push(token),
        }
    }
}

fn read_token(node: &Node, problems: &mut Problems) -> Option<AdminToken> {
    let fields = node.fields("a token", &TOKEN_KEYS, problems)?;
    let name = fields
        .require("a token", "name", "name: ci", problems)
        .and_then(|node| {
            let name = node.text("the name of a token", problems)?;
            if !is_principal_name(name) {
                problems.error_with(&node.location, "not a name of a token", PRINCIPAL_NAMES);
                return None;
            }
            Some(name)
        });
    let role = fields
        .require("a token", "role", "role: editor", problems)
        .and_then(|node| node.keyword("a role", &ROLES, problems));
    let digest = fields
        .require("a token", "sha256", "sha256: …", problems)
        .and_then(|node| {
            let digest = Digest::parse(node.text("the SHA-256 of a token", problems)?);
            if digest.is_none() {
                let hint = "write 64 hexadecimal digits, in quotes: `printf %s TOKEN | sha256sum`";
                problems.error_with(&node.location, "not a SHA-256", hint);
            }
            digest
        });
    let domains = match fields.value("domains") {
        None => Some(Vec::new()),
        Some(node) => {
            let names = node.one_or_more().iter();
            let names: Option<Vec<String>> = names
                .map(|node| node.text("a domain", problems).map(str::to_owned))
                .collect();
            // An empty list would be no limit at all.
            if names.as_ref().is_some_and(Vec::is_empty) {
                let hint = "list the domains it is limited to, or remove `domains`";
                problems.error_with(&node.location, "the token has no domain", hint);
            }
            names
        }
    };
    Some(AdminToken {
        name: name?.to_owned(),
        sha256: digest?,
        role: role?,
        domains: domains?,
    })
}

/// The keys of the section.
pub(super) const KEYS: [&str; 6] = [
    "external_url",
    "anonymous",
    "subjects",
    "tokens",
    "tokens_file",
    "ui_dir",
];
/// The keys of one token.
pub(super) const TOKEN_KEYS: [&str; 4] = ["name", "sha256", "role", "domains"];
/// Each role with its name.
pub(super) const ROLES: [(&str, Role); 4] = [
    ("viewer", Role::Viewer),
    ("operator", Role::Operator),
    ("editor", Role::Editor),
    ("admin", Role::Admin),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::{accepted, read};

    const DIGEST: &str = "0f3f7d8a0ad7e1c2b7d5a9a6c1f0e3d2b4c5a6978899aabbccddeeff00112233";

    #[test]
    fn the_section_is_read_with_its_defaults() {
        assert_eq!(accepted("").admin_settings, AdminSettings::default());
        let settings = accepted(&format!(
            "admin:\n  external_url: https://Gate.example:443/\n  anonymous: none\n  subjects: hidden\n  ui_dir: ui\n  \
             tokens: [{{ name: ci, sha256: {DIGEST}, role: editor, domains: [shop] }}]\n"
        ))
        .admin_settings;
        let expected = AdminSettings {
            external_url: Some(ExternalUrl {
                is_https: true,
                authority: "Gate.example".into(),
            }),
            anonymous: AnonymousAccess::None,
            subjects: SubjectDisplay::Hidden,
            tokens: vec![AdminToken {
                name: "ci".into(),
                sha256: Digest::parse(DIGEST).expect("a digest"),
                role: Role::Editor,
                domains: vec!["shop".into()],
            }],
            // Beside the file of the settings.
            ui_dir: Some("conf/ui".into()),
        };
        assert_eq!(settings, expected);
    }

    #[test]
    fn only_the_url_of_a_server_is_external() {
        let authority = |text: &str| parse_url(text).map(|external| external.authority);
        assert_eq!(
            authority("https://gate.example:8443").as_deref(),
            Some("gate.example:8443")
        );
        assert_eq!(authority("http://gate.example:80/").as_deref(), Some("gate.example"));
        assert_eq!(authority("https://[::1]").as_deref(), Some("[::1]"));
        for text in [
            "gate.example",
            "ftp://gate.example",
            "https://",
            "https://a@gate.example",
            "https://gate.example/admin",
            "https://gate.example?x",
            "https://gate.example/#x",
        ] {
            assert_eq!(parse_url(text), None, "{text}");
        }
    }

    #[test]
    fn access_of_everybody_is_accepted_with_a_warning() {
        let (config, messages) = read("admin: { anonymous: admin }");
        assert!(config.is_some() && messages.contains("for demos only"), "{messages}");
        assert_eq!(read("admin: { anonymous: viewer }").1, "");
    }

    #[test]
    fn access_without_login_behind_a_proxy_is_rejected() {
        for (anonymous, is_accepted) in [("viewer", false), ("admin", false), ("auto", true), ("none", true)] {
            let text = format!("admin: {{ external_url: 'https://gate.example', anonymous: {anonymous} }}");
            let (config, messages) = read(&text);
            assert_eq!(config.is_some(), is_accepted, "{messages}");
            assert_eq!(messages.contains("anonymous: none"), !is_accepted, "{messages}");
        }
    }

    #[test]
    fn a_token_has_the_name_of_a_principal() {
        for name in ["system", "offline", "a b", "''"] {
            let token = format!("admin: {{ tokens: [{{ name: {name}, sha256: {DIGEST}, role: viewer }}] }}");
            let (config, messages) = read(&token);
            assert!(
                config.is_none() && messages.contains("not a name of a token"),
                "{messages}"
            );
        }
    }
}
