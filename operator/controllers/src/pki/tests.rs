use std::time::Duration;

use k8s_openapi::ByteString;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, UnixTime};
use webpki::{EndEntityCert, anchor_from_trusted_cert};

use super::*;

const NAME: &str = "research.tools";

fn spec(purpose: Purpose) -> LeafSpec {
    LeafSpec {
        authority: NAME.to_owned(),
        common: "agent".to_owned(),
        names: vec!["agent.research.tools".to_owned()],
        purpose,
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// As a TLS peer would check it.
fn is_trusted(leaf: &Leaf, bundle: &str, purpose: Purpose, second: i64) -> bool {
    let certificate = CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap();
    let roots: Vec<CertificateDer<'_>> =
        CertificateDer::pem_slice_iter(bundle.as_bytes()).map(Result::unwrap).collect();
    let anchors: Vec<_> =
        roots.iter().map(|root| anchor_from_trusted_cert(root).unwrap()).collect();
    let usage = match purpose {
        Purpose::Server => webpki::KeyUsage::server_auth(),
        Purpose::Client => webpki::KeyUsage::client_auth(),
    };
    let now = UnixTime::since_unix_epoch(Duration::from_secs(u64::try_from(second).unwrap()));
    let leaf = EndEntityCert::try_from(&certificate).unwrap();
    leaf.verify_for_usage(webpki::ALL_VERIFICATION_ALGS, &anchors, &[], now, usage, None, None)
        .is_ok()
}

#[test]
fn a_certificate_is_trusted_for_its_purpose_and_its_life() {
    let now = 1_800_000_000;
    let authority = Authority::mint(NAME, at(now)).unwrap();
    let leaf = Leaf::mint(&spec(Purpose::Client), &authority, at(now)).unwrap();
    let bundle = authority.bundle();
    assert!(is_trusted(&leaf, &bundle, Purpose::Client, now));
    assert!(is_trusted(&leaf, &bundle, Purpose::Client, now - 500), "a clock that lags");
    assert!(!is_trusted(&leaf, &bundle, Purpose::Server, now));
    assert!(!is_trusted(&leaf, &bundle, Purpose::Client, now + 31 * 24 * 3600));
    let other = Authority::mint(NAME, at(now + 1)).unwrap();
    assert!(!is_trusted(&leaf, &other.bundle(), Purpose::Client, now));
}

#[test]
fn what_is_written_is_read_and_what_is_damaged_is_not() {
    let now = 1_800_000_000;
    let authority = Authority::mint(NAME, at(now)).unwrap();
    // With a successor.
    let authority = authority.advanced(NAME, at(now + 300 * 24 * 3600)).unwrap();
    let mut data = authority.write();
    let later = at(now + 300 * 24 * 3600);
    assert_eq!(Authority::read(&data, later), Some(authority.clone()));
    data.get_mut("next.key").unwrap().0.truncate(40);
    assert_eq!(Authority::read(&data, later), None);

    let leaf = Leaf::mint(&spec(Purpose::Server), &authority, at(now)).unwrap();
    let (certificate, key) = (leaf.certificate.as_bytes(), leaf.key.as_bytes());
    assert_eq!(Leaf::read(&leaf.annotations(), certificate, key), Some(leaf.clone()));
    assert_eq!(Leaf::read(&leaf.annotations(), certificate, b"nonsense"), None);
}

#[test]
fn lives_that_nobody_minted_are_refused_and_overflow_nothing() {
    let now = 1_800_000_000;
    let mut data = Authority::mint(NAME, at(now)).unwrap().write();
    let year = 365 * 24 * 3600;
    let lives = [
        (now, now + year, true),
        (now, 9_000_000_000_000_000_000, false),
        (i64::MAX - 1, i64::MAX, false),
        (i64::MIN, i64::MAX, false),
        (now + 3600, now + 7200, false),
        (now, now, false),
        (-1, now, false),
    ];
    for (begins, ends, sound) in lives {
        let state = format!(
            r#"{{"current":{{"begins":{begins},"ends":{ends}}},"next":null,"previous":null}}"#
        );
        data.insert("state.json".to_owned(), ByteString(state.into_bytes()));
        assert_eq!(Authority::read(&data, at(now)).is_some(), sound, "{begins} to {ends}");
        let life = Life { begins, ends };
        // Whatever comes of it, it is no crash.
        let _ = (life.renew_at(), params(&[], "name", life).is_ok());
    }
    let beyond = Life { begins: now, ends: 9_000_000_000_000_000_000 };
    assert!(params(&[], "name", beyond).is_err());
    let authority = Authority::mint(NAME, at(now)).unwrap();
    let leaf = Leaf::mint(&spec(Purpose::Client), &authority, at(now)).unwrap();
    let mut annotations = leaf.annotations();
    annotations.insert("rollwright.dev/ends".to_owned(), i64::MAX.to_string());
    let (certificate, key) = (leaf.certificate.as_bytes(), leaf.key.as_bytes());
    let odd = Leaf::read(&annotations, certificate, key).unwrap();
    assert!(!odd.serves(&spec(Purpose::Client), &authority, at(now)));
}

/// Four years in steps of less than the overlap, with an outage of the controllers in
/// between: whatever one side holds is trusted by what the other side was told up to
/// an hour before.
#[test]
fn through_all_rotations_both_sides_trust_each_other_with_old_files() {
    let begin = 1_800_000_000;
    let mut now = begin;
    let mut authority = Authority::mint(NAME, at(now)).unwrap();
    let mut leaf = Leaf::mint(&spec(Purpose::Client), &authority, at(now)).unwrap();
    // What a slow peer still holds.
    let (mut old_bundle, mut old_leaf) = (authority.bundle(), leaf.clone());
    let mut serials = vec![authority.serial()];
    while now < begin + 4 * 365 * 24 * 3600 {
        let due = authority.due().min(leaf.due());
        // One moment after something is due, and moments between.
        now = (now + 7 * 24 * 3600).min(due.max(now + 1800));
        authority = authority.advanced(NAME, at(now)).unwrap();
        if !leaf.serves(&spec(Purpose::Client), &authority, at(now)) {
            leaf = Leaf::mint(&spec(Purpose::Client), &authority, at(now)).unwrap();
        }
        if *serials.last().unwrap() != authority.serial() {
            serials.push(authority.serial());
        }
        let bundle = authority.bundle();
        assert!(is_trusted(&leaf, &bundle, Purpose::Client, now));
        assert!(is_trusted(&leaf, &old_bundle, Purpose::Client, now), "a new leaf, old files");
        assert!(is_trusted(&old_leaf, &bundle, Purpose::Client, now), "an old leaf, new files");
        assert!(bundle.matches("BEGIN CERTIFICATE").count() <= 3);
        (old_bundle, old_leaf) = (bundle, leaf.clone());
    }
    assert!(serials.len() >= 5, "{} authorities in four years", serials.len());
}
