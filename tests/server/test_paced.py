"""A few at a time: in the order of asking, and others have their turn between."""

from __future__ import annotations

import asyncio
import gc
import socket

from chairlift.server.garbage import Garbage
from chairlift.server.paced import AT_ONCE, Acceptor, Paced

TIMEOUT_S = 20.0


def test_calls_come_in_order_and_a_few_in_each_round() -> None:
    async def run() -> None:
        paced, called = Paced(), list[int]()
        for number in range(5 * AT_ONCE):
            paced.call(lambda number=number: called.append(number))  # type: ignore[misc]
        paced.call(lambda: paced.call(lambda: called.append(-1)))  # one that asks for another
        rounds = 0
        while not called or called[-1] != -1:
            before = len(called)
            await asyncio.sleep(0)
            assert len(called) - before <= AT_ONCE
            rounds += 1
        assert called == [*range(5 * AT_ONCE), -1]
        assert rounds >= 5

    asyncio.run(run())


def test_all_who_wait_are_taken_whatever_becomes_of_some() -> None:
    count = 6 * AT_ONCE

    async def run() -> None:
        taken: list[socket.socket] = []
        all_taken = asyncio.Event()

        async def connect(connection: socket.socket) -> None:
            taken.append(connection)
            if len(taken) == count:
                all_taken.set()
            if len(taken) % 3 == 0:
                raise ConnectionResetError("left already")

        with socket.create_server(("127.0.0.1", 0), backlog=count) as sock:
            sock.setblocking(False)
            clients = [socket.create_connection(sock.getsockname()) for _ in range(count)]
            acceptor = Acceptor(sock, connect)
            await asyncio.wait_for(all_taken.wait(), TIMEOUT_S)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert sum(connection.fileno() < 0 for connection in taken) == count // 3
            acceptor.close()
            acceptor.close()
            for one in (*clients, *taken):
                one.close()

    asyncio.run(run())


def test_whole_searches_are_left_to_the_server_while_it_serves() -> None:
    async def run() -> None:
        before = gc.get_threshold()
        garbage = Garbage()
        garbage.start()
        assert gc.get_threshold()[:2] == before[:2]
        assert gc.get_threshold()[2] > 1 << 20
        garbage.stop()
        garbage.stop()
        assert gc.get_threshold() == before

    asyncio.run(run())
