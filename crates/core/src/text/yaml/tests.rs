//! Trees of texts, and the problems of invalid and hostile ones.

use super::*;

fn read(text: &str) -> Result<Node, String> {
    parse(&Origin::new("x.yaml", text)).map_err(|problems| problems.iter().map(ToString::to_string).collect())
}

fn problems_of(text: &str) -> String {
    match read(text) {
        Ok(node) => panic!("`{}` was read: {node:?}", excerpt(text)),
        Err(problems) => problems,
    }
}

/// A value without its locations, as JSON; numbers in angle brackets.
fn bare(node: &Node) -> String {
    match &node.kind {
        NodeKind::Null => "null".into(),
        NodeKind::Bool(flag) => flag.to_string(),
        NodeKind::Number(text) => format!("<{text}>"),
        NodeKind::Text(text) => format!("{text:?}"),
        NodeKind::List(items) => format!("[{}]", items.iter().map(bare).collect::<Vec<_>>().join(", ")),
        NodeKind::Map(entries) => {
            let entries: Vec<String> = entries
                .iter()
                .map(|(key, value)| format!("{}: {}", key.text, bare(value)))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}

#[test]
fn scalars_are_what_the_core_schema_of_yaml_1_2_says() {
    for (text, expected) in [
        ("", "null"),
        ("# nothing", "null"),
        ("~", "null"),
        ("null", "null"),
        ("True", "true"),
        ("false", "false"),
        ("no", r#""no""#),
        ("on", r#""on""#),
        ("12", "<12>"),
        ("-0.5e+3", "<-0.5e+3>"),
        ("0x1F", "<0x1F>"),
        ("0o17", "<0o17>"),
        (".5", "<.5>"),
        ("1.", "<1.>"),
        ("-.inf", "<-.inf>"),
        ("010", "<010>"),
        ("1_000", r#""1_000""#),
        ("0x", r#""0x""#),
        ("1e", r#""1e""#),
        ("+", r#""+""#),
        ("'12'", r#""12""#),
        ("\"true\"", r#""true""#),
        ("10/s", r#""10/s""#),
        ("2001-01-01", r#""2001-01-01""#),
        ("|\n a\n b", r#""a\nb\n""#),
    ] {
        assert_eq!(read(text).map(|node| bare(&node)), Ok(expected.into()), "{text}");
    }
}

#[test]
fn lists_and_maps_keep_their_order_and_places() {
    let node = read("a: [1, x]\nb:\n- true: {c: }\n- 7: ''\n").unwrap();
    assert_eq!(bare(&node), r#"{a: [<1>, "x"], b: [{true: {c: null}}, {7: ""}]}"#);
    let NodeKind::Map(entries) = &node.kind else {
        panic!("not a map")
    };
    let NodeKind::List(items) = &entries[0].1.kind else {
        panic!("not a list")
    };
    let location = &items[1].location;
    assert_eq!((location.line, location.column, location.width), (1, 8, 1));
    assert_eq!(entries[1].0.location.to_string(), "x.yaml:2:1");
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (text, expected) in [
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3:1: error: duplicate key `a`"),
        ("a: 1\nb: 2\na: 3\n", "the first is at x.yaml:1:1"),
        ("a: &x 1\nb: *x\n", "x.yaml:2:4: error: aliases are not supported"),
        ("a: &x 1\nb: *x\n", "error: anchors are not supported"),
        ("a: *nowhere\n", "x.yaml:1:4: error: aliases are not supported"),
        ("a: !!str 1\n", "x.yaml:1:4: error: tags are not supported"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2:1: error: a second document starts here"),
        ("[1, 2]: 3\n", "x.yaml:1:1: error: this cannot be a key"),
        ("{: 3}\n", "error: this cannot be a key"),
        ("a:\n\t- b\n", "a tab where YAML requires spaces"),
        ("a: b: c\n", "x.yaml:1:5: error: a `:` where no key can be"),
        ("a: [1, 2\n", "is not closed"),
        ("a: \"x\n", "a quote is not closed"),
        ("a: {b: 1]\n", "closed by"),
        ("a: @x\n", "put it in quotes"),
        ("a: *\n", "x.yaml:1:"),
        ("a: \"\\d\"\n", "in single quotes a backslash is a backslash"),
        ("a: 1\n  b: 2\n", "x.yaml:2:"),
        ("- a\nb: 1\n", "x.yaml:2:1"),
    ] {
        let found = problems_of(text);
        assert!(found.contains(expected), "{text}\n{found}");
    }
}

#[test]
fn several_faults_are_told_at_once_in_their_order() {
    let found = problems_of("a: 1\na: 2\nb: !x y\nc: &z 1\n");
    let lines: Vec<&str> = found.lines().filter(|line| line.starts_with("x.yaml")).collect();
    assert_eq!(lines.len(), 3, "{found}");
    assert!(lines.is_sorted(), "{found}");
}

#[test]
fn bombs_are_refused_with_a_reason() {
    let deep = |open: &str| open.repeat(1 << 20);
    let mut laughs = String::from("a: &a [x, x, x, x, x, x, x, x, x]\n");
    for level in 'b'..='z' {
        let below = char::from_u32(level as u32 - 1).unwrap();
        laughs += &format!("{level}: &{level} [{}]\n", vec![format!("*{below}"); 9].join(", "));
    }
    for (name, text, expected) in [
        ("laughs", laughs, "aliases are not supported"),
        ("brackets", deep("["), "deep"),
        ("braces", deep("{"), "deep"),
        ("keyed braces", deep("{a: "), "deep"),
        ("dashes", deep("- "), "deep"),
        ("questions", deep("? "), "deep"),
        ("anchors", deep("&a "), "error"),
        ("tags", deep("!a "), "error"),
        ("twins", "a: b\n".repeat(1 << 18), "duplicate key"),
        ("values", "- \n".repeat(NODES_MAX + 1), "more than 2000000 values"),
        ("bytes", " ".repeat(BYTES_MAX + 1), "more than the 16777216"),
        ("documents", deep("---\n"), "second document"),
    ] {
        let found = problems_of(&text);
        assert!(found.contains(expected), "{name}: {}", excerpt(&found));
        assert!(found.len() < 1 << 20, "{name}: {} bytes of problems", found.len());
    }
}

#[test]
fn a_large_text_without_faults_is_read() {
    let text: String = (0..200_000).map(|n| format!("- {{id: r{n}, n: {n}}}\n")).collect();
    assert!(text.len() > 5_000_000);
    let node = read(&text).unwrap();
    assert_eq!(node.one_or_more().len(), 200_000);
}

#[test]
fn fields_tell_of_keys_that_are_not_known() {
    let mut problems = Problems::new();
    let node = read("limt: 1\nwhen: 2\nzzzzzz: 3\n").unwrap();
    let known = ["limit", "when", "id"];
    let fields = node.fields("a rule", &known, &mut problems).unwrap();
    assert!(fields.find("when").is_some());
    // A key that was suggested is not reported as missing as well.
    for (key, example) in [("limit", "limit: 100/min"), ("id", "id: plan")] {
        assert!(fields.require("a rule", key, example, &mut problems).is_none());
    }
    let text: String = problems.sorted().iter().map(ToString::to_string).collect();
    for part in [
        "x.yaml:1:1: error: `limt` is not a key of a rule",
        "did you mean `limit`?",
        "write one of `limit`, `when`, `id`",
        "a rule has no `id`",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("a rule has no `limit`"), "{text}");
}
