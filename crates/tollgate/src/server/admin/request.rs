//! A request of the admin API: its caller, its query, its body, and the members that all writes share.

pub(super) mod etag;
pub(super) mod table;
pub(super) mod time;

use super::access::rights::Caller;
use super::access::secrets::{from_hex, hex};
use super::problem::AdminProblem;
use super::service::AdminService;
use crate::control::database::Database;
use crate::control::model::{Author, Precondition};
use crate::control::{Control, WriteOptions};
use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::net::IpAddr;
use std::sync::Arc;

/// An authenticated request with its body.
pub(super) struct Call {
    pub(super) service: Arc<AdminService>,
    /// None only where a route needs no credential.
    pub(super) caller: Option<Caller>,
    pub(super) query: Query,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) peer: IpAddr,
    pub(super) request: String,
}

/// The decoded parameters of a query, in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Decodes a query, and rejects parameters that are not known or occur twice. `*` knows all.
    pub(super) fn parse(query: &str, known: &[&str]) -> Result<Self, AdminProblem> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if pairs.len() >= PARAMETERS_MAX {
                return Err(AdminProblem::malformed("too many parameters"));
            }
            if !known.contains(&&*name) && !known.contains(&"*") {
                let detail = format!("unknown parameter; known are: {}", known.join(", "));
                return Err(AdminProblem::field(&name, detail));
            }
            if pairs.iter().any(|(other, _)| *other == name) {
                return Err(AdminProblem::field(&name, "occurs twice"));
            }
            pairs.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self(pairs))
    }

    /// A parameter, empty or not.
    pub(super) fn raw(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(known, _)| known == name)?;
        Some(value)
    }

    /// A parameter that is not empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.raw(name).filter(|value| !value.is_empty())
    }

    /// A parameter that must be there.
    pub(super) fn require(&self, name: &str) -> Result<&str, AdminProblem> {
        self.get(name)
            .ok_or_else(|| AdminProblem::field(name, format!("the parameter `{name}` is missing")))
    }

    /// True or false; false if it is not there.
    pub(super) fn flag(&self, name: &str) -> Result<bool, AdminProblem> {
        match self.raw(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(AdminProblem::field(name, "must be true or false")),
        }
    }

    /// A parameter that is one of these words.
    pub(super) fn one_of(&self, name: &str, words: &[&str]) -> Result<Option<&str>, AdminProblem> {
        match self.raw(name) {
            Some(word) if !words.contains(&word) => Err(AdminProblem::field(
                name,
                format!("must be one of: {}", words.join(", ")),
            )),
            found => Ok(found),
        }
    }

    /// A whole number.
    pub(super) fn number(&self, name: &str) -> Result<Option<u64>, AdminProblem> {
        let Some(text) = self.raw(name) else { return Ok(None) };
        match text.parse() {
            Ok(number) if number <= NUMBER_MAX => Ok(Some(number)),
            _ => Err(AdminProblem::field(
                name,
                format!("must be a whole number up to {NUMBER_MAX}"),
            )),
        }
    }

    /// All parameters but these.
    pub(super) fn others(&self, names: &[&str]) -> impl Iterator<Item = (&str, &str)> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let others = self.0.iter().filter(move |(name, _)| !names.contains(name));
        others.map(|(name, value)| (&**name, &**value))
    }
}

impl Call {
    pub(super) fn control(&self) -> &Control {
        &self.service.control
    }

    /// The database.
    pub(super) fn database(&self) -> Result<&Database, AdminProblem> {
        let database = self.service.control.database();
        database.ok_or_else(|| crate::control::ControlError::NoDatabase.into())
    }

    /// The caller, where a route needs one.
    pub(super) fn caller(&self) -> Result<&Caller, AdminProblem> {
        self.caller.as_ref().ok_or_else(AdminProblem::unauthorized)
    }

    /// The body as JSON.
    pub(super) fn json<T: DeserializeOwned>(&self) -> Result<T, AdminProblem> {
        let kind = self
            .headers
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(AdminProblem::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "media-type",
                "send JSON, with `Content-Type: application/json`",
            ));
        }
        serde_json::from_slice(&self.body)
            .map_err(|error| AdminProblem::malformed(format!("the body cannot be read: {error}")))
    }

    /// The author of a write, for the audit log.
    pub(super) fn author(&self, reason: &str) -> Result<Author, AdminProblem> {
        if reason.chars().count() > REASON_MAX {
            return Err(AdminProblem::field(
                "reason",
                format!("has more than {REASON_MAX} characters"),
            ));
        }
        let caller = self.caller.as_ref();
        let is_cli = self.headers.get("x-tollgate-via").is_some_and(|via| via == "cli");
        let via = match caller {
            Some(caller) if caller.session.is_some() => "dashboard",
            _ if is_cli => "cli",
            _ => "api",
        };
        Ok(Author {
            actor: caller.map_or("anonymous", |caller| &caller.name).to_owned(),
            via: via.to_owned(),
            address: self.peer.to_canonical().to_string(),
            request: self.request.clone(),
            reason: reason.to_owned(),
        })
    }

    /// The condition of a write; overwriting needs a reason.
    pub(super) fn precondition(&self, reason: &str) -> Result<Precondition, AdminProblem> {
        let precondition = etag::precondition(&self.headers)?;
        if precondition == Precondition::Any {
            need_reason(reason, "`If-Match: *`")?;
        }
        Ok(precondition)
    }

    /// The options of a write for this reason.
    pub(super) fn write_options(&self, reason: &str) -> Result<WriteOptions, AdminProblem> {
        Ok(WriteOptions {
            precondition: self.precondition(reason)?,
            allow_orphan: false,
            dry_run: self.query.flag("dry_run")?,
        })
    }

    /// Rejects a domain that the caller is not limited to.
    pub(super) fn check_domain(&self, domain: &str) -> Result<(), AdminProblem> {
        match self.caller()?.covers(domain) {
            true => Ok(()),
            false => Err(AdminProblem::forbidden(
                "domain",
                "this credential is limited to other domains",
            )),
        }
    }

    /// Rejects a caller that is limited to some domains.
    pub(super) fn check_unrestricted(&self) -> Result<(), AdminProblem> {
        match self.caller()?.is_restricted() {
            false => Ok(()),
            true => Err(AdminProblem::forbidden(
                "domain",
                "this credential is limited to some domains",
            )),
        }
    }

    /// The domains of a list: the one in the query, or all that the caller may see; empty: all.
    pub(super) fn domains(&self) -> Result<Vec<String>, AdminProblem> {
        match self.query.get("domain") {
            Some(domain) => {
                self.check_domain(domain)?;
                Ok(vec![domain.to_owned()])
            }
            None => Ok(self.caller()?.domains.clone()),
        }
    }

    /// The number of items of a page.
    pub(super) fn limit(&self, max: u64) -> Result<usize, AdminProblem> {
        match self.query.number("limit")? {
            None => Ok(PAGE_DEFAULT),
            Some(limit) if (1..=max).contains(&limit) => Ok(usize::try_from(limit).unwrap_or(PAGE_DEFAULT)),
            Some(_) => Err(AdminProblem::field("limit", format!("must be from 1 to {max}"))),
        }
    }

    /// The position after which a page begins.
    pub(super) fn after<T: DeserializeOwned>(&self) -> Result<Option<T>, AdminProblem> {
        let Some(text) = self.query.get("after") else {
            return Ok(None);
        };
        let is_hidden = self.masks_subjects();
        let read = || serde_json::from_slice(&self.service.cursors.open(&from_hex(text)?, is_hidden)?).ok();
        let invalid = "not a position of this list, or one of before a restart; begin anew without `after`";
        read().map(Some).ok_or_else(|| AdminProblem::field("after", invalid))
    }

    /// The position after the last item of a page, unless the list ends with it.
    pub(super) fn next<'p, T, K: Serialize>(
        &self,
        page: &'p [T],
        limit: usize,
        key: impl FnOnce(&'p T) -> K,
    ) -> Option<String> {
        let last = page.last().filter(|_| page.len() == limit)?;
        self.cursor(&key(last))
    }

    /// The first page of all items that are left, and the position after it, unless the list ends with it.
    pub(super) fn first_page<'p, T, K: Serialize>(
        &self,
        all: &'p [T],
        limit: usize,
        key: impl FnOnce(&'p T) -> K,
    ) -> (&'p [T], Option<String>) {
        match all.get(..limit) {
            Some(page) if page.len() < all.len() => (page, self.next(page, limit, key)),
            _ => (all, None),
        }
    }

    /// The position after an item. Those whom subjects are masked for get a number instead of the key.
    pub(super) fn cursor(&self, key: &impl Serialize) -> Option<String> {
        let text = serde_json::to_vec(key).ok()?;
        Some(hex(&self.service.cursors.seal(text, self.masks_subjects())))
    }

    /// The epoch of the applied state; of the first write, before there is one.
    pub(super) fn epoch(&self) -> u64 {
        self.control().live().head.as_ref().map_or(1, |head| head.epoch)
    }

    /// True if subjects are masked for this caller.
    pub(super) fn masks_subjects(&self) -> bool {
        use super::settings::SubjectDisplay;
        let sees = |caller: &Caller| caller.has(super::access::rights::Right::Subjects);
        !self.caller.as_ref().is_some_and(sees) && self.service.options.settings.subjects != SubjectDisplay::Plain
    }

    /// Rejects a caller that names a subject though subjects are masked for it: the answer would tell whether it exists.
    pub(super) fn check_subjects(&self) -> Result<(), AdminProblem> {
        match self.masks_subjects() {
            false => Ok(()),
            true => Err(AdminProblem::forbidden(
                "subjects",
                "naming or searching a subject needs the right `subjects`, which your role does not include",
            )),
        }
    }

    /// A message about an item as the caller may see it: it may quote a subject.
    pub(super) fn show_message(&self, text: String) -> String {
        match self.masks_subjects() {
            true => "hidden: it may name a subject".to_owned(),
            false => text,
        }
    }

    /// A reason as the caller may see it: one of a version may be about any domain.
    pub(super) fn show_reason<'r>(&self, reason: &'r str) -> &'r str {
        match self.caller.as_ref().is_some_and(Caller::is_restricted) {
            true => "",
            false => reason,
        }
    }

    /// A subject's value as the caller may see it.
    pub(super) fn show(&self, value: &str) -> String {
        match self.masks_subjects() {
            true => self.service.options.settings.subjects.show(value),
            false => value.to_owned(),
        }
    }
}

/// Rejects an empty reason.
pub(super) fn need_reason(reason: &str, what: &str) -> Result<(), AdminProblem> {
    match reason.trim().is_empty() {
        false => Ok(()),
        true => {
            let detail = format!("{what} needs a reason");
            Err(AdminProblem::new(StatusCode::BAD_REQUEST, "reason-required", detail).with("field", "reason"))
        }
    }
}

const REASON_MAX: usize = 500;
/// The greatest whole number that every JSON parser reads.
pub(super) const NUMBER_MAX: u64 = (1 << 53) - 1;
const PARAMETERS_MAX: usize = 64;
const PAGE_DEFAULT: usize = 100;
