defmodule Shop.Shapes do
  @moduledoc """
  Areas of shapes; a shape that isn't known has none.
  """

  @type shape :: {:circle, float} | {:square, float}

  @spec area(shape) :: {:ok, float} | :error
  def area({:circle, radius}), do: {:ok, :math.pi() * radius * radius}

  def area({:square, side}) do
    {:ok, side * side}
  end

  def area(_other), do: :error

  def total(shapes) do
    shapes
    |> Enum.map(&area/1)
    |> Enum.reduce(0.0, fn
      {:ok, area}, sum -> sum + area
      :error, sum -> sum
    end)
  end

  def describe(shape) do
    case area(shape) do
      {:ok, area} when area > 100 ->
        "large (#{area})"

      {:ok, area} ->
        "small (#{area})"

      :error ->
        "unknown"
    end
  end
end
