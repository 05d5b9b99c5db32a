//! The tidy test: rules about the repository that neither a manifest nor a lint can keep.
//!
//! A rule is a pure function from files to violations. Here each rule runs over the repository; in `bad_trees` it runs
//! over made-up files that break it. Exceptions stand in `exceptions.rs`, each with its reason.

mod bad_trees;
mod exceptions;
mod repository;
mod rules;
mod source;

use repository::repository;
use rules::{Rule, dashboard, tree, vocabulary};

/// Tests with these names, each of one rule.
macro_rules! tests {
    ($($name:ident => $check:expr,)*) => {
        $(#[test]
        fn $name() {
            $check;
        })*
    };
}

tests! {
    every_algorithm_has_its_files_side_by_side => check(rules::algorithm_files),
    only_settle_calls_the_server => check(rules::server_calls),
    manifests_keep_the_promise_of_their_crate => check(rules::dependencies),
    a_module_is_named_after_itself => check(rules::module_files),
    white_space_is_clean => check(rules::white_space),
    a_document_has_one_title => check(rules::titles),
    no_source_file_outgrows_its_reader => check(rules::lengths),
    nothing_is_left_unfinished => check(rules::unfinished),
    no_path_of_a_machine_is_written_down => check(rules::machine_paths),
    front_ends_do_not_know_each_other => check(rules::imports),
    one_crate_writes_headers_and_problems => check(rules::shared_writers),
    layers_of_the_redis_store_import_one_way => check(rules::redis_layers),
    the_dashboard_has_no_sinks => check(dashboard::sinks),
    white_space_of_the_dashboard_is_clean => check(dashboard::white_space),
    nothing_strays_at_the_top => check(rules::top_level),
    names_use_the_words_of_the_field => check_except("names", vocabulary::names),
    text_for_users_has_no_banned_words => check_except("texts", vocabulary::texts),
    a_public_type_has_a_name_of_its_own => check_except("public_types", vocabulary::public_types),
    no_doc_comment_opens_with_a_question_word => check_except("doc_openings", vocabulary::doc_openings),
    no_folder_has_too_many_files => check_except("folder_sizes", tree::folder_sizes),
    the_code_map_names_every_file => check_except("code_map", tree::code_map),
}

/// Runs a rule over the repository and panics with all violations.
fn check(rule: Rule) {
    report(&rule(&repository()));
}

/// The same, without the violations that stay.
fn check_except(name: &str, rule: Rule) {
    report(&exceptions::excepted(rule(&repository()), name));
}

fn report(violations: &[String]) {
    assert!(
        violations.is_empty(),
        "the repository breaks its own rules:\n{}\n",
        violations.join("\n")
    );
}
