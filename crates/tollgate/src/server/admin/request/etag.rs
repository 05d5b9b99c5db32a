//! Entity tags: `"e1-r813"`, the epoch and the revision that last changed an item.

use crate::control::model::Precondition;
use crate::server::admin::problem::AdminProblem;
use hyper::header::{IF_MATCH, IF_NONE_MATCH};
use hyper::{HeaderMap, StatusCode};

/// The tag of an item.
pub(in crate::server::admin) fn text(epoch: u64, revision: u64) -> String {
    format!("\"e{epoch}-r{revision}\"")
}

/// The condition of a write.
pub(in crate::server::admin) fn precondition(headers: &HeaderMap) -> Result<Precondition, AdminProblem> {
    let single = |name| {
        let mut values = headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => value.to_str().ok().map(str::trim),
            _ => None,
        }
    };
    match (single(IF_MATCH), single(IF_NONE_MATCH)) {
        (Some("*"), None) => Ok(Precondition::Any),
        (None, Some("*")) => Ok(Precondition::Absent),
        (Some(tag), None) => {
            let (epoch, revision) = parse(tag)
                .ok_or_else(|| AdminProblem::field("If-Match", "not a tag of this server, such as `\"e1-r813\"`"))?;
            // The tag of what does not exist yet: the set before the first publish.
            Ok(match revision {
                0 => Precondition::Absent,
                revision => Precondition::Unchanged { epoch, revision },
            })
        }
        (None, None) if !headers.contains_key(IF_MATCH) && !headers.contains_key(IF_NONE_MATCH) => {
            Err(AdminProblem::new(
                StatusCode::PRECONDITION_REQUIRED,
                "precondition-required",
                "send `If-Match` with the tag of the item as it was read, or `If-None-Match: *` to create it",
            ))
        }
        _ => Err(AdminProblem::malformed(
            "send either one `If-Match`, or `If-None-Match: *`",
        )),
    }
}

/// Epoch and revision of a tag. Proxies make tags weak, or mark what they compressed.
fn parse(tag: &str) -> Option<(u64, u64)> {
    let tag = tag.strip_prefix("W/").unwrap_or(tag);
    let tag = tag.strip_prefix('"')?.strip_suffix('"')?;
    let tag = tag
        .strip_suffix("-gzip")
        .or_else(|| tag.strip_suffix("-br"))
        .unwrap_or(tag);
    let (epoch, revision) = tag.strip_prefix('e')?.split_once("-r")?;
    let number = |text: &str| {
        text.bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| text.parse().ok())
            .flatten()
    };
    Some((number(epoch)?, number(revision)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_read_as_proxies_leave_them() {
        for tag in ["\"e1-r813\"", "W/\"e1-r813\"", "\"e1-r813-gzip\"", "W/\"e1-r813-br\""] {
            assert_eq!(parse(tag), Some((1, 813)), "{tag}");
        }
        for tag in ["e1-r813", "\"e1\"", "\"e-r1\"", "\"e1-r+1\"", "", "\"\""] {
            assert_eq!(parse(tag), None, "{tag}");
        }
        assert_eq!(parse(&text(2, 7)), Some((2, 7)));
    }
}
