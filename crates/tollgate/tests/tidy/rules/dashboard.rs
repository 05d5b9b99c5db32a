//! Rules about the files of the dashboard, which the policy of the page would break at run time, or which a browser would load
//! from elsewhere.

use crate::repository::File;

/// No markup from text, no code from text, no inline styles, no worker, no other host.
pub(crate) fn sinks(files: &[File]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with(UI)) {
        // The name of the namespace is no address.
        let text = file.text.replace("http://www.w3.org/2000/svg", "");
        for (number, line) in (1..).zip(text.lines()) {
            for sink in SINKS.iter().filter(|sink| line.contains(**sink)) {
                let path = &file.path;
                violations.push(format!("{path}:{number}: `{sink}`: make elements with `h` of core.js"));
            }
        }
    }
    violations
}

/// White space and line ends, as elsewhere.
pub(crate) fn white_space(files: &[File]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in files.iter().filter(|file| file.path.starts_with(UI)) {
        for (number, line) in (1..).zip(file.text.split('\n')) {
            if line.contains('\t') || line.ends_with(char::is_whitespace) {
                violations.push(format!("{}:{number}: has a tab, or ends with white space", file.path));
            }
        }
        if !file.text.ends_with('\n') || file.text.ends_with("\n\n") {
            violations.push(format!("{}: does not end with exactly one newline", file.path));
        }
    }
    violations
}

const UI: &str = "crates/tollgate/src/ui/";
/// Sinks of Trusted Types, what the policy forbids, and addresses of other hosts.
pub(crate) const SINKS: [&str; 19] = [
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "setHTMLUnsafe",
    "parseHTMLUnsafe",
    "createContextualFragment",
    "DOMParser",
    "document.write",
    "srcdoc",
    "eval(",
    "new Function",
    "new Worker",
    "SharedWorker",
    "serviceWorker",
    "cssText",
    "style=",
    "<style",
    "http://",
    "https://",
];
