//! Made-up files that break the rules about words and about the tree.

use super::finds;
use crate::rules::tree::{code_map, folder_sizes};
use crate::rules::vocabulary::{BANNED_IN_NAMES, BANNED_IN_TEXT, doc_openings, names, public_types, texts};

const LIB: &str = "crates/core/src/lib.rs";

#[test]
fn a_banned_word_in_a_name_is_noticed_wherever_the_name_is_defined() {
    for source in [
        "struct Told;",
        "struct A { pub(crate) told: u8 }",
        "struct A<T> { #[serde(skip)] is_told: T }",
        "enum A { B, Told(u8) }",
        "enum A { B { told: u8 } }",
        "pub(crate) fn read_told() {}",
        "const fn told() {}",
        "const TOLD_MAX: u8 = 1;",
        "mod told;",
        "trait WasTold {}",
        "type Told = u8;",
    ] {
        let violations = names(&[file(LIB, source)]);
        assert_eq!(violations.len(), 1, "{source}: {violations:?}");
    }
    for source in [
        "fn a(told: u8) { let told = B { told: 1 }; }",
        "fn recommend() {}\nstruct Placeholder { oddness: u8 }",
        "#[cfg(test)]\nmod tests {\n    fn told() {}\n}",
        "#[test]\nfn nobody_is_told() {}",
        "// told\n/// told\nconst A: &str = \"told\";",
    ] {
        finds(names, &[(LIB, source)], &[]);
    }
    for word in BANNED_IN_NAMES {
        let source = format!("fn {word}_all() {{}}");
        let violation = format!("{LIB}:1: `{word}_all`: `{word}` is banned in names");
        finds(names, &[(LIB, &source)], &[&violation]);
    }
    finds(
        names,
        &[
            ("crates/core/src/told.rs", ""),
            ("crates/core/src/told/a.rs", ""),
            ("crates/core/tests/told.rs", "fn told() {}"),
            ("bench/src/a.lua", "local told = 1 -- heard"),
        ],
        &[
            "crates/core/src/told.rs: `told`: `told` is banned in names",
            "crates/core/src/told/a.rs: `told`: `told` is banned in names",
            "bench/src/a.lua:1: `told`: `told` is banned in names",
        ],
    );
}

#[test]
fn a_banned_phrase_in_text_for_users_is_noticed() {
    for phrase in BANNED_IN_TEXT {
        let source = format!("\nconst A: &str = \"It {phrase}.\";");
        let violation = format!("{LIB}:2: `{phrase}` is banned in text for users");
        finds(texts, &[(LIB, &source)], &[&violation]);
        for path in [
            "README.md",
            "docs/a.md",
            "crates/tollgate/src/server/openapi.json",
            "a.schema.json",
        ] {
            let violation = format!("{path}:2: `{phrase}` is banned in text for users");
            finds(texts, &[(path, &format!("good\nIs {phrase}\n"))], &[&violation]);
        }
    }
    finds(
        texts,
        &[
            (LIB, "/// All is under\n/// way.\nfn a() {}"),
            ("docs/a.md", "Under\nway"),
        ],
        &[
            "crates/core/src/lib.rs:1: `under way` is banned in text for users",
            "docs/a.md:1: `under way` is banned in text for users",
        ],
    );
    finds(
        texts,
        &[
            (
                LIB,
                "// told\nconst A: &str = \"recommended, untold\";\n#[test]\nfn a() { b(\"told\"); }",
            ),
            ("CHANGELOG.md", "told"),
        ],
        &[],
    );
}

#[test]
fn two_public_types_of_one_name_are_noticed() {
    finds(
        public_types,
        &[
            (LIB, "pub struct Answer;\npub(crate) struct Part;\nstruct Part;"),
            ("crates/limiter/src/store.rs", "pub enum Answer {}\npub type Gcra = u8;"),
            ("crates/limiter/src/limits.rs", "pub struct Gcra;"),
            (
                "crates/core/src/algorithm/gcra.rs",
                "pub struct Gcra;\npub struct State;",
            ),
            ("crates/core/src/algorithm/cell.rs", "pub struct State;"),
        ],
        &[
            "crates/core/src/lib.rs, crates/limiter/src/store.rs: `Answer` is the name of several public types",
            "crates/core/src/algorithm/gcra.rs, crates/limiter/src/store.rs: `Gcra` is the name of several public types",
        ],
    );
}

#[test]
fn a_doc_comment_that_opens_with_a_question_word_is_noticed() {
    finds(
        doc_openings,
        &[(
            LIB,
            "//! What it is.\n\n/// Whether.\nfn a() {}\n/// The size.\n/// How large.\nfn b() {}\n/// However.\nfn c() {}",
        )],
        &[
            "crates/core/src/lib.rs:1: a doc comment opens with `What`",
            "crates/core/src/lib.rs:3: a doc comment opens with `Whether`",
        ],
    );
}

#[test]
fn a_crowded_folder_is_noticed() {
    let crowd = |folder: &str, count: usize| -> Vec<_> {
        (0..count)
            .map(|number| file(&format!("{folder}/f{number}.rs"), ""))
            .collect()
    };
    assert!(folder_sizes(&crowd("crates/core/src", 14)).is_empty());
    assert!(folder_sizes(&crowd("crates/core/tests/laws", 20)).is_empty());
    assert_eq!(
        folder_sizes(&crowd("crates/core/src/rules", 15)),
        ["crates/core/src/rules: has 15 .rs files; divide it at 14"]
    );
    assert_eq!(
        folder_sizes(&crowd("crates/core/tests/laws", 21)),
        ["crates/core/tests/laws: has 21 .rs files; divide it at 20"]
    );
}

#[test]
fn a_file_that_the_code_map_does_not_name_and_a_name_without_a_file_are_noticed() {
    let map = "# Map\n\n- `stray.rs`: below no root\n\n### `crates/core/src`\n\n- `lib.rs`: the crate\n- `rules/`: the rules\n\
               - `gone.rs`: was here\n- `empty.rs`:\n\n## Other\n\n- `other.rs`: not of the map\n";
    finds(
        code_map,
        &[
            ("ARCHITECTURE.md", map),
            (LIB, ""),
            ("crates/core/src/rules.rs", ""),
            ("crates/core/src/rules/plan.rs", ""),
            ("crates/core/src/rules/plan.lua", ""),
            ("crates/core/src/rules/plan/tests.rs", ""),
            ("crates/core/src/rules/settle.lua", ""),
            ("crates/core/src/empty.rs", ""),
            ("crates/core/tests/laws/a.rs", ""),
        ],
        &[
            "crates/core/src/empty.rs: has no line in the code map of ARCHITECTURE.md",
            "crates/core/src/rules/plan.rs: has no line in the code map of ARCHITECTURE.md",
            "crates/core/src/rules/settle.lua: has no line in the code map of ARCHITECTURE.md",
            "crates/core/src/gone.rs: is in the code map of ARCHITECTURE.md and not in the tree",
        ],
    );
}

fn file(path: &str, text: &str) -> crate::repository::File {
    crate::repository::File {
        path: path.into(),
        text: text.into(),
    }
}
