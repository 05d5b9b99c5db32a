//! Any bytes as the body of a request: parsed, or rejected with a problem document.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::server::http::api::request;

fuzz_target!(|body: &[u8]| {
    for parsed in [request::attempt(body), request::subject(body)].into_iter().flatten() {
        let attributes = parsed.attributes();
        let attempt = parsed.attempt(&attributes);
        assert!(attempt.attributes.len() <= request::ATTRIBUTES_MAX);
        assert!(attempt.attributes.iter().all(|attribute| attribute.name.len() <= request::NAME_BYTES_MAX));
        assert!(attempt.attributes.iter().all(|attribute| attribute.value.len() <= request::VALUE_BYTES_MAX));
    }
    if let Ok(all) = request::batch(body) {
        assert!(all.len() <= request::BATCH_MAX);
    }
    let _ = request::lease(body);
});
