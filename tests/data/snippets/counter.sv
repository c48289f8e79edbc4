// A counter that doesn't wrap around.
module counter #(
  parameter int WIDTH = 8
) (
  input  logic             clk,
  input  logic             reset,
  output logic [WIDTH-1:0] value
);

  localparam logic [WIDTH-1:0] LAST = 8'hff;

  always_ff @(posedge clk or posedge reset) begin
    if (reset) begin
      value <= '0;
    end else if (value != LAST) begin
      value <= value + 1'b1;
    end
  end

  function automatic logic is_even(input logic [WIDTH-1:0] number);
    return (number & 8'h01) == 8'h00;
  endfunction

endmodule
