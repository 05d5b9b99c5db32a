//! The repository held to its own rules: the walls that neither a manifest nor a lint can keep.
//!
//! A rule is a pure function from files to complaints. Here each rule is shown the repository; in `bad_trees` it is
//! shown made-up files that break it, because a rule that never complains is no wall.

mod bad_trees;
mod repository;
mod rules;

use repository::repository;
use rules::Rule;

#[test]
fn every_algorithm_has_its_files_side_by_side() {
    check(rules::algorithm_files);
}

#[test]
fn only_settle_talks_to_the_server() {
    check(rules::server_calls);
}

#[test]
fn manifests_keep_the_promise_of_their_crate() {
    check(rules::dependencies);
}

#[test]
fn a_module_is_named_after_itself() {
    check(rules::module_files);
}

#[test]
fn white_space_is_clean() {
    check(rules::white_space);
}

#[test]
fn a_document_has_one_title() {
    check(rules::titles);
}

#[test]
fn no_source_file_outgrows_its_reader() {
    check(rules::lengths);
}

#[test]
fn nothing_is_left_unfinished() {
    check(rules::unfinished);
}

#[test]
fn no_path_of_a_machine_is_written_down() {
    check(rules::machine_paths);
}

#[test]
fn front_ends_do_not_know_each_other() {
    check(rules::imports);
}

#[test]
fn nothing_strays_at_the_top() {
    check(rules::top_level);
}

/// Shows the repository to a rule and panics with all it has to say.
fn check(rule: Rule) {
    let complaints = rule(&repository());
    assert!(
        complaints.is_empty(),
        "the repository breaks its own rules:\n{}\n",
        complaints.join("\n")
    );
}
