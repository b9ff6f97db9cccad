//! Login, discovery, data and task management of initiators that respect the protocol.

use millrace_iscsi::{
    chap::{Credentials, Mutual, Secret},
    discovery::{self, SendTargets},
    login::{LoginError, Status},
    negotiation::Settings,
    pdu::{RejectReason, Response, Stage, TaskFunction, TaskResult},
    session::{Direction, InitiatorEvent},
};
use millrace_iscsi_target::ConnectionLimits;
use millrace_tls::TransportSecurity;

use super::common::{Ended, NAMES, TARGET, login, name, pattern, run, rw10, target};

#[test]
fn data_is_written_immediately_unsolicited_and_by_request() {
    for digests in [false, true] {
        run(ConnectionLimits::default(), async |bench| {
            for (n, (initial_r2t, immediate_data)) in
                [(true, true), (true, false), (false, true), (false, false)].into_iter().enumerate()
            {
                let mut client = bench.connect_with(3000, 1000 + n);
                if digests {
                    client = client.with_digests();
                }
                client.settings = Settings { initial_r2t, immediate_data, ..client.settings };
                client.log_in(n as u8).await.unwrap();
                client.clear_attention().await;
                for blocks in [1, 8, 128, 129, 2049, 16384] {
                    let data = pattern(blocks * 512, n + blocks);
                    client.write(3, &data).await;
                    assert!(client.read(3, blocks as u16).await == data, "{blocks} blocks");
                }
                client.log_out().await;
            }
            bench.expect_idle().await;
        });
    }
}

#[test]
fn commands_are_executed_concurrently_within_the_limits_of_memory() {
    run(ConnectionLimits::default(), async |bench| {
        let mut client = bench.connect();
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        // 64 MiB of commands, with 32 MiB of memory.
        let writes: Vec<u32> = (0..64)
            .map(|n| client.submit(&rw10(0x2a, n * 8, 2048), Direction::Write, pattern(1 << 20, n as usize)))
            .collect();
        for itt in writes {
            client.outcome(itt).await.unwrap();
        }
        let reads: Vec<u32> = (0..64)
            .map(|n| client.submit(&rw10(0x28, n * 8, 2048), Direction::Read, vec![0; 1 << 20]))
            .collect();
        for itt in reads {
            client.outcome(itt).await.unwrap();
        }
        assert!(bench.budget.stats().peak <= 32 << 20, "{:?}", bench.budget.stats());
        client.log_out().await;
        bench.expect_idle().await;
    });
}

#[test]
fn responses_to_commands_received_together_are_sent_in_two_parts() {
    run(ConnectionLimits::default(), async |bench| {
        let mut client = bench.connect();
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        const RESPONSE: usize = 48 + 512; // A Data-In PDU with the status.
        for (commands, parts) in [(4, vec![4]), (16, vec![8, 8]), (40, vec![8, 32]), (40, vec![20, 20])] {
            client.received.lock().unwrap().clear();
            let read = |n| client.submit(&rw10(0x28, n, 1), Direction::Read, vec![0; 512]);
            for itt in (0..commands).map(read).collect::<Vec<_>>() {
                client.outcome(itt).await.unwrap();
            }
            let sent = std::mem::take(&mut *client.received.lock().unwrap());
            assert_eq!(sent, parts.iter().map(|n| n * RESPONSE).collect::<Vec<_>>());
        }
        client.log_out().await;
        bench.expect_idle().await;
    });
}

#[test]
fn discovery_lists_the_permitted_targets_and_their_addresses() {
    run(ConnectionLimits::default(), async |bench| {
        let mut other = target(&bench.device);
        (other.name, other.initiators) =
            (name("iqn.2026-01.example:other"), vec![name("iqn.2026-01.example:x")]);
        let mut protected = target(&bench.device);
        (protected.name, protected.xprtsec) = (name("iqn.2026-01.example:tls"), TransportSecurity::Tls);
        bench.server.table.replace(vec![target(&bench.device), other, protected]).unwrap();
        let mut client = bench.connect();
        client.log_in_to(1, None).await.unwrap();
        client.session().send_text(SendTargets::All.encode()).unwrap();
        let text = |event: &InitiatorEvent| match event {
            InitiatorEvent::Text { text, .. } => Some(text.clone()),
            _ => None,
        };
        let targets = discovery::decode(&client.event(text).await.unwrap()).unwrap();
        assert_eq!(targets.len(), 1);
        assert_eq!(targets[0].name.as_str(), TARGET);
        assert_eq!(targets[0].addresses[0].to_string(), "127.0.0.1:2,1");
        client.log_out().await;
        for forbidden in ["iqn.2026-01.example:other", "iqn.2026-01.example:tls"] {
            let mut client = bench.connect();
            let refused = client.log_in_to(1, Some(name(forbidden))).await;
            assert_eq!(refused, Err(LoginError::Status(Status::FORBIDDEN)));
            client.expect_end().await;
        }
        let mut client = bench.connect();
        let refused = client.log_in_to(1, Some(name("iqn.2026-01.example:none"))).await;
        assert_eq!(refused, Err(LoginError::Status(Status::NOT_FOUND)));
        client.expect_end().await;
        bench.expect_idle().await;
    });
}

/// As the test iSCSISendTargets.Invalid of libiscsi 1.20 requires.
#[test]
fn text_that_is_not_send_targets_is_rejected_and_the_session_continues() {
    run(ConnectionLimits::default(), async |bench| {
        let mut client = bench.connect();
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        for text in [
            &b"SendTargetsPlease=All\0"[..],
            b"SendTargets=Every\0",
            b"SendTargets=A\0",
            b"sENDtARGETS=aLL\0",
            b"SendTargets",
            b"=\0\0",
            b"X-com.example.key=1\0SendTargets=?\0",
            b"",
        ] {
            let sent = client.session().send_text(text.to_vec()).unwrap();
            let rejected = client.event(|event: &InitiatorEvent| match event {
                InitiatorEvent::RequestRejected { itt, reason } => Some((*itt, *reason)),
                _ => None,
            });
            assert_eq!(rejected.await.unwrap(), (sent, RejectReason::INVALID_PDU_FIELD), "{text:?}");
        }
        client.session().send_text(SendTargets::Session.encode()).unwrap();
        let text = |event: &InitiatorEvent| match event {
            InitiatorEvent::Text { text, .. } => Some(text.clone()),
            _ => None,
        };
        assert_eq!(discovery::decode(&client.event(text).await.unwrap()).unwrap().len(), 1);
        client.log_out().await;
        bench.expect_idle().await;
    });
}

fn credentials(name: &str, secret: &str) -> Credentials {
    Credentials { name: name.into(), secret: Secret::new(secret.as_bytes()).unwrap() }
}

#[test]
fn both_sides_authenticate() {
    run(ConnectionLimits::default(), async |bench| {
        let mut config = target(&bench.device);
        let host = || credentials("host", "a secret of the host");
        let own = || Some(credentials("target", "a secret of the target"));
        config.chap = Some(Mutual::new(host(), own()).unwrap());
        bench.server.table.replace(vec![config]).unwrap();
        let wrong = credentials("host", "not the secret of the host");
        for (chap, expected) in [
            (Some(Mutual::new(host(), None).unwrap()), true),
            (Some(Mutual::new(host(), own()).unwrap()), true),
            (Some(Mutual::new(wrong, None).unwrap()), false),
            (None, false),
        ] {
            let mut client = bench.connect();
            client.chap = chap;
            let result = client.log_in(1).await;
            assert_eq!(result.is_ok(), expected, "{result:?}");
            if expected {
                client.clear_attention().await;
                client.log_out().await;
            } else {
                client.expect_end().await;
            }
        }
        bench.expect_idle().await;
    });
}

#[test]
fn a_second_login_reinstates_the_session() {
    run(ConnectionLimits::default(), async |bench| {
        let mut old = bench.connect();
        old.log_in(1).await.unwrap();
        old.clear_attention().await;
        let mut other = bench.connect();
        other.log_in(2).await.unwrap();
        let mut new = bench.connect();
        new.log_in(1).await.unwrap();
        assert_eq!(old.step().await, Err(Ended));
        old.stream_shutdown();
        assert_eq!(bench.server.table.sessions(), 2);
        new.clear_attention().await;
        new.write(0, &pattern(512, 1)).await;
        other.clear_attention().await;
        new.log_out().await;
        other.log_out().await;
        bench.expect_idle().await;
    });
}

#[test]
fn task_management_functions_end_tasks() {
    run(ConnectionLimits::default(), async |bench| {
        let mut client = bench.connect();
        client.settings.immediate_data = false;
        client.settings.initial_r2t = true;
        client.log_in(1).await.unwrap();
        client.clear_attention().await;
        let before = client.read(0, 16).await;
        for function in [
            None,
            Some(TaskFunction::ABORT_TASK_SET),
            Some(TaskFunction::CLEAR_TASK_SET),
            Some(TaskFunction::LOGICAL_UNIT_RESET),
            Some(TaskFunction::TARGET_WARM_RESET),
        ] {
            // A write whose data was requested, but is not sent.
            let write = client.submit(&rw10(0x2a, 0, 16), Direction::Write, pattern(8192, 3));
            let pdu = client.session().poll_transmit().unwrap();
            client.send(&pdu.encode(), &[]).await.unwrap();
            let managed = match function {
                None => client.session().abort(write).unwrap().unwrap(),
                Some(function) => client.session().manage(function, 0).unwrap(),
            };
            let pdu = client.session().poll_transmit().unwrap();
            client.send(&pdu.encode(), &[]).await.unwrap();
            assert_eq!(client.managed(managed).await, Ok(TaskResult::COMPLETE), "{function:?}");
            client.outcome(write).await.unwrap();
            client.clear_attention().await;
            assert!(client.read(0, 16).await == before);
        }
        assert_eq!(client.manage(TaskFunction::TASK_REASSIGN).await, TaskResult::NO_REASSIGNMENT);
        client.session().manage(TaskFunction::TARGET_COLD_RESET, 0).unwrap();
        client.expect_end_of_session().await;
        bench.expect_idle().await;
        bench.expect_service().await;
    });
}

#[test]
fn a_removed_target_asks_for_a_logout() {
    run(ConnectionLimits::default(), async |bench| {
        let (mut polite, mut rude) = (bench.connect(), bench.connect());
        polite.log_in(1).await.unwrap();
        rude.log_in(2).await.unwrap();
        bench.server.table.replace(Vec::new()).unwrap();
        let asked = |event: &InitiatorEvent| match event {
            InitiatorEvent::LogoutRequested { seconds } => Some(*seconds),
            _ => None,
        };
        assert_eq!(polite.event(asked).await, Ok(5));
        polite.log_out().await;
        assert_eq!(rude.event(asked).await, Ok(5));
        let dropped = |event: &InitiatorEvent| matches!(event, InitiatorEvent::Dropped { .. }).then_some(());
        rude.event(dropped).await.unwrap();
        rude.expect_end().await;
        bench.expect_idle().await;
    });
}

#[test]
fn sessions_with_less_protection_than_their_target_begins_to_want_end_at_once() {
    run(ConnectionLimits::default(), async |bench| {
        let mut client = bench.connect();
        client.log_in(1).await.unwrap();
        // Another one is between the stages of its login.
        let mut late = bench.connect();
        let first = login(|r| (r.stage, r.next) = (Stage::Security, Some(Stage::Operational)), NAMES);
        late.send(&first.bhs, &first.data).await.unwrap();
        let (bhs, _) = late.receive().await.unwrap();
        assert!(matches!(Response::decode(&bhs), Ok(Response::Login(r)) if r.status_class == 0));

        let mut protected = target(&bench.device);
        protected.xprtsec = TransportSecurity::Tls;
        bench.server.table.replace(vec![protected]).unwrap();
        assert_eq!(client.expect_end().await, [], "no request for a logout");
        let last = login(|_| (), b"");
        late.send(&last.bhs, &last.data).await.unwrap();
        let [Response::Login(refused)] = late.expect_end().await[..] else { panic!("no response") };
        assert_eq!((refused.status_class, refused.status_detail), (2, 2));
        bench.expect_idle().await;
    });
}

#[test]
fn the_end_of_the_server_asks_for_a_logout() {
    run(ConnectionLimits::default(), async |mut bench| {
        let mut client = bench.connect();
        client.log_in(1).await.unwrap();
        bench.fixture.stopper.take().unwrap().send(()).unwrap();
        let asked =
            |event: &InitiatorEvent| matches!(event, InitiatorEvent::LogoutRequested { .. }).then_some(());
        client.event(asked).await.unwrap();
        client.log_out().await;
        bench.expect_idle().await;
    });
}
