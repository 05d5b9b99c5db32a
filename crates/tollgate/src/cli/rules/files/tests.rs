use super::*;

#[test]
fn paths_are_relative_to_what_the_files_have_in_common() {
    for (files, expected) in [
        (&["a.yaml"][..], &["a.yaml"][..]),
        (&["rules/a.yaml", "rules/b.yaml"], &["a.yaml", "b.yaml"]),
        (
            &["./out/a.yaml", "./out/managed/shop/x.yaml"],
            &["a.yaml", "managed/shop/x.yaml"],
        ),
        (&["/etc/r/a.yaml"], &["a.yaml"]),
    ] {
        let paths: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
        let common = common_parent(&paths.iter().collect::<Vec<_>>());
        let found: Vec<String> = paths
            .iter()
            .map(|path| relative(path, &common).expect("a plain path"))
            .collect();
        assert_eq!(found, expected);
    }
    assert!(relative(Path::new("../a.yaml"), Path::new("")).is_err());
}

#[test]
fn a_file_that_no_version_may_have_is_named_before_anything_is_sent() {
    let failure = read(&[PathBuf::from("rules/limits.conf")]).err().expect("a refusal");
    let text = format!("{failure:?}");
    assert!(
        text.contains("rules/limits.conf") && text.contains("must end in .yaml or .yml"),
        "{text}"
    );
}

#[test]
fn the_grammar_of_a_file_follows_from_its_content() {
    assert_eq!(grammar("a", "rules: []"), Ok(Grammar::Own));
    assert_eq!(grammar("a", "domain: x\ndescriptors: []\n"), Ok(Grammar::Envoy));
    assert_eq!(grammar("a", "rules: ["), Ok(Grammar::Own));
    assert!(grammar("a", "server: { http: disabled }\nrules: []\n").is_err());
}
