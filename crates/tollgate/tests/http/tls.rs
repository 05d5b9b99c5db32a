//! TLS: certificates of the server and of clients, and certificates that change.

use rustls::pki_types::ServerName;
use std::fs;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tollgate::server::http::HttpSettings;
use tollgate::server::net::tls::{Tls, TlsReload};
use tollgate_test_kit::certificates::{Authority, Folder, authority, client, signed};
use tollgate_test_kit::http::{HttpServer, settings};

const RULES: &str = "- { id: plan, limit: 100/min }\n";

/// What is answered to a request over TLS, from its first line, or why there is none.
fn request(server: &HttpServer, connector: &TlsConnector) -> Result<String, String> {
    server.runtime.block_on(async {
        let stream = TcpStream::connect(server.address)
            .await
            .map_err(|error| error.to_string())?;
        let name = ServerName::try_from("localhost").unwrap();
        let mut stream = connector
            .connect(name, stream)
            .await
            .map_err(|error| error.to_string())?;
        let request = b"GET /healthz HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n";
        stream.write_all(request).await.map_err(|error| error.to_string())?;
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .await
            .map_err(|error| error.to_string())?;
        Ok(answer.lines().next().unwrap_or_default().to_owned())
    })
}

fn serve(tls: Tls) -> (HttpServer, Arc<Tls>) {
    let tls = Arc::new(tls);
    let settings = HttpSettings {
        tls: Some(Arc::clone(&tls)),
        ..settings()
    };
    (HttpServer::start_with(RULES, settings), tls)
}

const OK: &str = "HTTP/1.1 200 OK";

#[test]
fn who_trusts_the_authority_is_served() {
    let (folder, ours, other) = (Folder::new("served"), authority(), authority());
    folder.sign(&ours);
    let (server, _) = serve(Tls::load(folder.files(None)).unwrap());
    assert_eq!(request(&server, &client(&ours, None, &[])).as_deref(), Ok(OK));
    assert_eq!(
        request(&server, &client(&ours, None, &[b"http/1.1"])).as_deref(),
        Ok(OK)
    );
    assert!(request(&server, &client(&other, None, &[])).is_err());
    // Plain HTTP is not answered.
    let mut plain = server.connect();
    plain.send("GET /healthz HTTP/1.1\r\nHost: test\r\n\r\n");
    assert!(!plain.rest().contains("200"));
}

#[test]
fn clients_show_certificates_where_they_have_to() {
    let (folder, ours, clients, others) = (Folder::new("clients"), authority(), authority(), authority());
    folder.sign(&ours);
    fs::write(folder.0.join("clients.pem"), clients.pem()).unwrap();
    let tls = Tls::load(folder.files(Some("clients.pem"))).unwrap();
    assert!(tls.requires_client_certificate());
    let (server, _) = serve(tls);
    assert_eq!(
        request(&server, &client(&ours, Some(signed(&clients)), &[])).as_deref(),
        Ok(OK)
    );
    assert!(request(&server, &client(&ours, Some(signed(&others)), &[])).is_err());
    assert!(request(&server, &client(&ours, None, &[])).is_err());
}

#[test]
fn a_changed_certificate_is_taken_and_a_broken_one_is_not() {
    let (folder, first, second) = (Folder::new("changed"), authority(), authority());
    folder.sign(&first);
    let (server, tls) = serve(Tls::load(folder.files(None)).unwrap());
    assert!(matches!(tls.reload_if_changed(), TlsReload::Unchanged));
    let serves = |authority: &Authority| request(&server, &client(authority, None, &[])).as_deref() == Ok(OK);
    assert!(serves(&first) && !serves(&second));
    // Only one of the two files is written yet.
    let key = fs::read(folder.0.join("server.key")).unwrap();
    folder.sign(&second);
    let new_key = fs::read(folder.0.join("server.key")).unwrap();
    fs::write(folder.0.join("server.key"), key).unwrap();
    assert!(matches!(
        tls.reload_if_changed(),
        TlsReload::Failed(_) | TlsReload::Unchanged | TlsReload::Reloaded
    ));
    assert!(serves(&first) && !serves(&second));
    fs::write(folder.0.join("server.key"), new_key).unwrap();
    // The server looks by itself, too: whoever was first, the new one is in use.
    assert!(matches!(
        tls.reload_if_changed(),
        TlsReload::Reloaded | TlsReload::Unchanged
    ));
    while !serves(&second) {}
    assert!(!serves(&first));
    fs::write(folder.0.join("server.pem"), "no certificate").unwrap();
    tls.reload_if_changed();
    assert!(serves(&second));
    fs::remove_file(folder.0.join("server.pem")).unwrap();
    tls.reload_if_changed();
    assert!(serves(&second));
}

#[test]
fn certificates_that_are_watched_are_taken_by_themselves() {
    let (folder, first, second) = (Folder::new("itself"), authority(), authority());
    folder.sign(&first);
    let (server, tls) = serve(Tls::load(folder.files(None)).unwrap());
    server.runtime.spawn(tls.watch());
    folder.sign(&second);
    let connector = client(&second, None, &[]);
    while request(&server, &connector).as_deref() != Ok(OK) {}
}

#[test]
fn what_cannot_be_used_is_refused_by_its_file() {
    let folder = Folder::new("refused");
    let error = Tls::load(folder.files(None)).unwrap_err().to_string();
    assert!(error.contains("server.pem"), "{error}");
    folder.sign(&authority());
    fs::write(folder.0.join("server.key"), "").unwrap();
    let error = Tls::load(folder.files(None)).unwrap_err().to_string();
    assert!(error.contains("server.key: holds no private key"), "{error}");
    folder.sign(&authority());
    fs::write(folder.0.join("clients.pem"), "").unwrap();
    let error = Tls::load(folder.files(Some("clients.pem"))).unwrap_err().to_string();
    assert!(error.contains("clients.pem: holds no certificate"), "{error}");
}
