"""The halo exchange as such: where its rows lie, and that it allocates nothing once it has its buffers."""

import torch
from torch.profiler import ProfilerActivity, profile

from anatomy.training.boundary import Boundary
from anatomy.training.communication import Communicator, Exchange
from anatomy.training.parts import LocalPart

OWN, HALO, WIDTH = 300, 200, 32


class Mirror(Communicator):
    """One of two ranks, whose partner sends what it is sent, as far as it goes."""

    def start_exchange(self, send, send_counts, receive, receive_counts, kind) -> Exchange:
        receive.zero_()
        receive[: len(send)] = send[: len(receive)]
        return Exchange()


def boundary() -> Boundary:
    part = LocalPart(torch.arange(OWN), torch.arange(HALO), None, torch.arange(HALO) + 50, [0, HALO], [0, HALO])
    return Boundary(part, Mirror(0, 2))


def test_rows_and_gradients_come_back_through_autograd():
    exchange, leaf = boundary(), torch.randn(OWN, WIDTH, requires_grad=True)
    for _ in range(2):  # the gradient that autograd keeps is no buffer of the boundary
        leaf.grad = None
        rows = exchange.exchange(leaf, slot=1)
        torch.testing.assert_close(rows[OWN:], leaf.detach()[50 : 50 + HALO])
        weights = torch.randn(OWN + HALO, WIDTH)
        (rows * weights).sum().backward()
        expected = weights[:OWN].clone()
        expected[50 : 50 + HALO] += weights[OWN:]
        torch.testing.assert_close(leaf.grad, expected)
        kept = leaf.grad.clone()
        exchange.backward(torch.zeros(OWN + HALO, WIDTH), 1)
        torch.testing.assert_close(leaf.grad, kept)


def test_nothing_is_allocated_from_the_second_exchange_on():
    exchange, own, gradient = boundary(), torch.randn(OWN, WIDTH), torch.randn(OWN + HALO, WIDTH)
    allocated = []
    for _ in range(3):
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
            rows, back = exchange.forward(own, 1), exchange.backward(gradient, 1)
        allocated.append(sum(max(event.cpu_memory_usage, 0) for event in trace.events()))
    one_row = 4 * WIDTH
    assert allocated[0] > (OWN + HALO) * one_row
    assert max(allocated[1:]) < HALO * one_row, "less than any of its tables"
    assert torch.equal(rows[:OWN], own)
    assert back.shape == (OWN, WIDTH)
