use super::*;
use proptest::prelude::*;
use tollgate_test_kit::table::rows;

/// Domain, attributes and cost, or the member at fault and a part of the reason.
type Expected<'a> = Result<(&'a str, &'a [(&'a str, &'a str)], u64), (Option<&'a str>, &'a str)>;

fn check(body: &str, expected: Expected<'_>) {
    let asked = attempt(body.as_bytes());
    match (asked, expected) {
        (Ok(asked), Ok((domain, attributes, cost))) => {
            let attributes_of = asked.attributes();
            let found: Vec<(&str, &str)> = attributes_of
                .iter()
                .map(|attribute| (attribute.name, std::str::from_utf8(attribute.value).unwrap()))
                .collect();
            assert_eq!(
                (&*asked.domain, &*found, asked.cost.get()),
                (domain, attributes, cost),
                "{body}"
            );
        }
        (Err(problem), Err((field, reason))) => {
            assert_eq!(problem.field.as_deref(), field, "{body}: {}", problem.detail);
            assert!(problem.detail.contains(reason), "{body}: {}", problem.detail);
        }
        (asked, expected) => panic!("{body}: {asked:?} instead of {expected:?}"),
    }
}

#[test]
fn an_attempt_is_read_as_it_is_written() {
    check(
        r#"{"domain":"default","attributes":{"merchant":"m_1","endpoint":"/v1/charges"},"cost":1}"#,
        Ok(("default", &[("merchant", "m_1"), ("endpoint", "/v1/charges")], 1)),
    );
    check(r#"{"attributes":{}}"#, Ok(("default", &[], 1)));
    check(r#" { "cost" : 0 , "attributes" : { } } "#, Ok(("default", &[], 0)));
    check(
        r#"{"attributes":{},"cost":999999999999999}"#,
        Ok(("default", &[], 999_999_999_999_999)),
    );
    check(r#"{"domain":"","attributes":{}}"#, Err((Some("domain"), "is empty")));
    check(r#"{"domain":"\u0064","attributes":{}}"#, Ok(("d", &[], 1)));
}

#[test]
fn numbers_and_booleans_are_their_text() {
    check(
        r#"{"attributes":{"a":1,"b":1.0,"c":-0,"d":1e400,"e":true,"f":false,"g":123456789012345678901234567890}}"#,
        Ok((
            "default",
            &[
                ("a", "1"),
                ("b", "1.0"),
                ("c", "-0"),
                ("d", "1e400"),
                ("e", "true"),
                ("f", "false"),
                ("g", "123456789012345678901234567890"),
            ],
            1,
        )),
    );
}

#[test]
fn escapes_mean_what_they_stand_for() {
    check(
        r#"{"\u0061ttributes":{"\u006e\"":"a\n\u00e9\ud83d\ude00\u0000"},"domain":"\u0064"}"#,
        Ok(("d", &[("n\"", "a\né😀\0")], 1)),
    );
    check(
        r#"{"attributes":{"n":"\ud800"}}"#,
        Err((Some("attributes.n"), "cannot be read")),
    );
}

#[test]
fn a_fault_names_the_member() {
    for [body, field, reason] in rows(include_str!("tests/rejected.txt")) {
        let body = if body == "(empty)" { "" } else { body };
        let field = Some(field).filter(|field| *field != "(none)");
        check(body, Err((field, reason)));
    }
    assert!(
        attempt(b"{\"attributes\":{\"a\":\"\xff\"}}")
            .unwrap_err()
            .detail
            .contains("UTF-8")
    );
}

#[test]
fn everything_has_a_bound() {
    let attributes = |count: usize| {
        let members: Vec<String> = (0..count).map(|number| format!(r#""a{number}":1"#)).collect();
        format!(r#"{{"attributes":{{{}}}}}"#, members.join(","))
    };
    assert!(attempt(attributes(ATTRIBUTES_MAX).as_bytes()).is_ok());
    check(
        &attributes(ATTRIBUTES_MAX + 1),
        Err((
            Some("attributes"),
            "has 65 members, and an attempt has at most 64 attributes",
        )),
    );
    let long =
        |name: usize, value: usize| format!(r#"{{"attributes":{{"{}":"{}"}}}}"#, "n".repeat(name), "v".repeat(value));
    assert!(attempt(long(NAME_BYTES_MAX, VALUE_BYTES_MAX).as_bytes()).is_ok());
    check(
        &long(NAME_BYTES_MAX + 1, 1),
        Err((Some("attributes"), "1 to 256 bytes")),
    );
    check(
        &long(1, VALUE_BYTES_MAX + 1),
        Err((Some("attributes.n"), "more than 8192 bytes")),
    );
    let deep = format!(r#"{{"attributes":{}}}"#, "[".repeat(30_000));
    check(&deep, Err((None, "not an object in JSON")));
    let batch_of = |count: usize| format!("[{}]", vec![r#"{"attributes":{}}"#; count].join(","));
    assert_eq!(
        batch(batch_of(BATCH_MAX).as_bytes()).map(|batch| batch.len()),
        Ok(BATCH_MAX)
    );
    assert!(
        batch(batch_of(BATCH_MAX + 1).as_bytes())
            .unwrap_err()
            .detail
            .contains("at most 1000 attempts, and this has 1001")
    );
}

#[test]
fn a_fault_in_a_batch_names_the_element() {
    let problem = batch(br#"[{"attributes":{}},{"attributes":{},"cost":-1}]"#).unwrap_err();
    assert_eq!((problem.index, problem.field.as_deref()), (Some(1), Some("cost")));
    assert_eq!(batch(b"[]"), Ok(Vec::new()));
    let many: Vec<String> = (0..=ATTRIBUTES_MAX).map(|number| format!(r#""a{number}":1"#)).collect();
    let many = format!(r#"[{{"attributes":{{}}}},{{"attributes":{{{}}}}}]"#, many.join(","));
    for (body, index, field) in [
        (&b"{}"[..], None, None),
        (b"[1]", Some(0), None),
        (b"[{\"attributes\":{}},null]", Some(1), None),
        (b"[{\"attributes\":{}},[]]", Some(1), None),
        (many.as_bytes(), Some(1), Some("attributes")),
        // What is no JSON at all, no UTF-8, or ends too early.
        (b"[{\"attributes\":{}},{\"attributes\":}]", Some(1), None),
        (
            b"[{\"attributes\":{}},{\"attributes\":{\"a\":\"\xff\"}}]",
            Some(1),
            None,
        ),
        (b"[{\"attributes\":{}},{\"attributes\":{}}", Some(2), None),
        (b"[{\"attributes\":{}},", Some(1), None),
        (b"[{\"attributes\":{}}]x", None, None),
        (b"", None, None),
    ] {
        let problem = batch(body).unwrap_err();
        let told = format!("{}: {}", String::from_utf8_lossy(body), problem.detail);
        assert_eq!((problem.index, problem.field.as_deref()), (index, field), "{told}");
        let named = index.map(|index| format!("element {index} of the batch"));
        assert!(named.is_none_or(|named| problem.detail.contains(&named)), "{told}");
    }
}

#[test]
fn a_subject_may_name_a_rule_and_has_no_cost() {
    assert_eq!(
        subject(br#"{"attributes":{},"rule":"plan"}"#).unwrap().rule(),
        Some("plan")
    );
    assert_eq!(subject(br#"{"attributes":{}}"#).unwrap().rule(), None);
    assert_eq!(
        subject(br#"{"attributes":{},"cost":1}"#).unwrap_err().field.as_deref(),
        Some("cost")
    );
}

#[test]
fn a_lease_is_one_string() {
    assert_eq!(lease(br#"{"lease":"abc"}"#).as_deref(), Ok("abc"));
    for body in [&b"{}"[..], br#"{"lease":1}"#, br#"{"lease":"a","lease":"b"}"#] {
        assert_eq!(lease(body).unwrap_err().field.as_deref(), Some("lease"));
    }
    assert_eq!(
        lease(br#"{"lease":"a","x":1}"#).unwrap_err().field.as_deref(),
        Some("x")
    );
}

proptest! {
    #[test]
    fn any_bytes_are_a_request_or_a_fault(bytes: Vec<u8>) {
        let _ = (attempt(&bytes), batch(&bytes), subject(&bytes), lease(&bytes));
    }

    #[test]
    fn any_json_is_a_request_or_a_fault(
        body in r#"[\[{]("(attributes|cost|domain|a)"|[\[\]{}:,]|1|-|"|\\|null){0,24}[\]}]"#
    ) {
        let _ = (attempt(body.as_bytes()), batch(body.as_bytes()));
    }

    #[test]
    fn any_text_arrives_as_it_was_sent(name in ".{1,20}", value: String, domain in ".{1,20}") {
        let body = serde_json::json!({"domain": domain, "attributes": {&name: &value}}).to_string();
        let asked = attempt(body.as_bytes()).unwrap();
        let attributes = asked.attributes();
        prop_assert_eq!(asked.attempt(&attributes).domain, domain);
        prop_assert_eq!(&*attributes, [Attribute { name: &name, value: value.as_bytes() }]);
    }
}
