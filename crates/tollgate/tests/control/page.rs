//! The walkthrough of a page: its files and commands in order, and the output that it shows for each.

/// One thing a reader does.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Writes a file: its first line is a comment with its name.
    File { name: String, text: String },
    /// Types a command, and reads its output.
    Command { command: String, output: String },
}

/// The steps of the sections with these headings.
pub(crate) fn steps(page: &str, headings: &[&str]) -> Vec<Step> {
    let mut steps = Vec::new();
    for heading in headings {
        let title = format!("\n## {heading}\n");
        let section = page
            .split_once(&title)
            .unwrap_or_else(|| panic!("no section {heading}"))
            .1;
        let section = section.split("\n## ").next().unwrap_or(section);
        // Every second part is between fences.
        for block in section.split("```").skip(1).step_by(2) {
            let (language, text) = block.split_once('\n').expect("a fence ends its line");
            match language {
                "yaml" => steps.extend(file(text)),
                "console" => steps.extend(commands(text)),
                _ => {}
            }
        }
    }
    steps
}

fn file(text: &str) -> Option<Step> {
    let name = text.lines().next()?.strip_prefix("# ")?.to_owned();
    Some(Step::File {
        name,
        text: text.to_owned(),
    })
}

fn commands(text: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step::Command {
                command: command.to_owned(),
                output: String::new(),
            }),
            (None, Some(Step::Command { output, .. })) => {
                output.push_str(line);
                output.push('\n');
            }
            (None, _) => panic!("output without a command: {line}"),
        }
    }
    steps
}

/// True if a text is what a page shows: `…` alone on a line is any number of lines. Times, codes, hashes and the padding of
/// columns may differ.
pub(crate) fn matches(shown: &str, found: &str) -> bool {
    let shown: Vec<String> = shown.lines().map(plain).collect();
    let found: Vec<String> = found.lines().map(plain).collect();
    is_match(&shown, &found)
}

fn is_match(shown: &[String], found: &[String]) -> bool {
    match shown.split_first() {
        None => found.is_empty(),
        Some((line, rest)) if line == "…" => {
            (0..=found.len()).any(|skipped| is_match(rest, found.get(skipped..).unwrap_or_default()))
        }
        Some((line, rest)) => found
            .split_first()
            .is_some_and(|(first, others)| line == first && is_match(rest, others)),
    }
}

/// A line with placeholders for what is another with every run.
fn plain(line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut plain: Vec<String> = Vec::new();
    for (index, word) in words.iter().enumerate() {
        let unit = words.get(index + 1).map(|next| next.trim_end_matches([')', ',', ';']));
        plain.push(placeholder(word, unit));
    }
    plain.join(" ")
}

fn placeholder(word: &str, unit: Option<&str>) -> String {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let core = word.trim_start_matches('(').trim_end_matches([')', ',', ';']);
    let core = core.rsplit_once('=').map_or(core, |(_, value)| value);
    let groups: Vec<&str> = core.split('-').collect();
    let is_code = groups.len() > 1
        && groups.iter().all(|group| {
            group.len() == 4
                && group
                    .bytes()
                    .all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit())
        });
    let is_date = groups.len() == 3 && groups.iter().all(|group| is_number(group));
    let is_time = core.len() == 5
        && core
            .split(':')
            .filter(|part| part.len() == 2 && is_number(part))
            .count()
            == 2;
    let is_hash = core.len() >= 12 && core.bytes().all(|byte| byte.is_ascii_hexdigit()) && !is_number(core);
    let name = match core {
        _ if core.starts_with("tgt_") => "TOKEN",
        _ if is_code => "CODE",
        _ if is_date => "DATE",
        _ if is_time => "TIME",
        _ if is_hash => "HASH",
        // Of a limit it is the number after it that counts: what remains depends on the time between two commands.
        _ if is_number(&core.replacen('.', "", 1)) && matches!(unit, Some("ms" | "s" | "of")) => "N",
        "ms" | "s" => "SECONDS",
        _ => return word.to_owned(),
    };
    word.replacen(core, name, 1)
}

#[test]
fn placeholders_hide_only_what_differs_from_run_to_run() {
    for (shown, found) in [
        ("published (180 ms)", "published (1.7 s)"),
        ("at 2026-11-18 12:00 UTC, ops", "at 2027-01-02   23:59 UTC, ops"),
        (
            "setup: http://h/#setup=7K3F-9QXM-2HTD",
            "setup: http://h/#setup=AAAA-BBBB-CCC4",
        ),
        ("token: tgt_a_b", "token: tgt_c_d"),
        ("a\n…\nb\n", "a\nx\ny\nb\n"),
    ] {
        assert!(matches(shown, found), "{shown} {found}");
    }
    for (shown, found) in [
        ("version 1", "version 2"),
        ("99 of 100 remaining", "99 of 200 remaining"),
        ("a\nb\n", "a\n"),
        ("token: tgt_a_b", "token: x"),
        ("…\nb\n", "a\nb\nc\n"),
    ] {
        assert!(!matches(shown, found), "{shown} {found}");
    }
}
