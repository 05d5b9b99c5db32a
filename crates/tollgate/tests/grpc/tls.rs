//! TLS: who may come, and certificates that change.

use rustls::pki_types::ServerName;
use std::fs;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tollgate::server::grpc::GrpcSettings;
use tollgate::server::net::tls::{Tls, TlsFiles, TlsReload};
use tollgate::server::rls::rate_limit_response::Code;
use tollgate_test_kit::certificates::{Folder, authority, client, signed_for};
use tollgate_test_kit::grpc::{Client, GrpcServer, descriptor, request_for, settings};

fn serve(tls: Arc<Tls>) -> GrpcServer {
    let settings = GrpcSettings {
        tls: Some(tls),
        ..settings()
    };
    GrpcServer::start_with("- { id: x, limit: 1000/min }\n", settings)
}

/// Whether a client is served.
fn is_served(server: &GrpcServer, connector: &TlsConnector) -> bool {
    let runtime = &server.runtime;
    let stream = runtime.block_on(TcpStream::connect(server.address)).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let Ok(stream) = runtime.block_on(connector.connect(name, stream)) else {
        return false;
    };
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let mut client = Client::over(runtime, stream);
    // With TLS 1.3 a client hears of a certificate that is not wanted when it reads.
    let answer = client.try_call(
        tollgate_test_kit::grpc::SHOULD_RATE_LIMIT,
        &prost::Message::encode_to_vec(&request_for([descriptor(&[])])),
        &[],
    );
    answer.is_ok_and(|answer| answer.status == Some(0))
}

#[test]
fn clients_are_known_by_who_signed_them_and_by_their_names() {
    let (folder, ours, clients, others) = (Folder::new("grpc-names"), authority(), authority(), authority());
    folder.sign(&ours);
    fs::write(folder.0.join("clients.pem"), clients.pem()).unwrap();
    let spiffe = "spiffe://shop.example/ns/edge/sa/envoy";
    let named = |names: &[&str]| TlsFiles {
        client_names: Some(names.iter().map(|name| Box::from(*name)).collect()),
        ..folder.files(Some("clients.pem"))
    };
    let server = serve(Arc::new(Tls::load(named(&["envoy.example", spiffe])).unwrap()));
    let h2: &[&[u8]] = &[b"h2"];
    for (names, authority, served) in [
        (&["envoy.example"][..], &clients, true),
        (&["other.example", "envoy.example"], &clients, true),
        (&[spiffe], &clients, true),
        (&["other.example"], &clients, false),
        (&["*.example"], &clients, false),
        (&[], &clients, false),
        (&["envoy.example"], &others, false),
    ] {
        let certificate = signed_for(authority, names);
        let connector = client(&ours, Some(certificate), h2);
        assert_eq!(is_served(&server, &connector), served, "{names:?}");
    }
    assert!(!is_served(&server, &client(&ours, None, h2)));
    // Whoever does not trust the server does not come either.
    let certificate = signed_for(&clients, &["envoy.example"]);
    assert!(!is_served(&server, &client(&others, Some(certificate), h2)));
}

#[test]
fn a_changed_certificate_is_taken_while_old_connections_go_on() {
    let (folder, first, second) = (Folder::new("grpc-changed"), authority(), authority());
    folder.sign(&first);
    let tls = Arc::new(Tls::load(folder.files(None)).unwrap());
    let server = serve(Arc::clone(&tls));
    let h2: &[&[u8]] = &[b"h2"];
    let stream = server.runtime.block_on(async {
        let stream = TcpStream::connect(server.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        client(&first, None, h2).connect(name, stream).await.unwrap()
    });
    let mut old = Client::over(&server.runtime, stream);
    assert_eq!(
        old.should_rate_limit(&request_for([descriptor(&[])])).overall_code(),
        Code::Ok
    );
    folder.sign(&second);
    assert!(matches!(tls.reload_if_changed(), TlsReload::Reloaded));
    assert!(is_served(&server, &client(&second, None, h2)));
    assert!(!is_served(&server, &client(&first, None, h2)));
    assert_eq!(
        old.should_rate_limit(&request_for([descriptor(&[])])).overall_code(),
        Code::Ok
    );
}
