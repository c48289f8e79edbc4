using System;
using System.Collections.Generic;
using System.Linq;

namespace Shop.Orders
{
    /// <summary>A queue of orders; it doesn't block.</summary>
    public sealed class OrderQueue
    {
        private readonly Dictionary<string, List<Order>> orders = new();

        public event Action<Order>? Added;

        public int Count => orders.Values.Sum(list => list.Count);

        public void Add(Order order)
        {
            if (order is null)
            {
                throw new ArgumentNullException(nameof(order));
            }

            if (!orders.TryGetValue(order.Customer, out var list))
            {
                list = new List<Order>();
                orders[order.Customer] = list;
            }
            else
            {
                list.RemoveAll(each => each.Id == order.Id);
            }

            list.Add(order);
            Added?.Invoke(order);
        }

        public IEnumerable<Order> Largest(int number)
        {
            return orders.Values
                .SelectMany(list => list)
                .OrderByDescending(order => order.Total)
                .Take(number);
        }
    }

    public record Order(string Id, string Customer, decimal Total)
    {
        public string Label => $"{Id}: {Customer} ({Total:F2})";
    }
}
